"""`penstock demo`: a keyed running aggregate that loses a worker in the middle and still comes out exact."""
