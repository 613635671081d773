"""What a find does, for each row, with a word that is kept beside its key (see `table`): nothing, one more, a whole
number more, a float more."""

LEAVE, COUNT, ADD, ADD_FRACTION = 0, 1, 2, 3
