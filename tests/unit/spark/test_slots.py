"""What a cluster offers, read from its master's address and settings."""

from __future__ import annotations

import os

import pytest
from pyspark.conf import SparkConf

from penstock.spark.slots import offered_slots


def conf(**settings: str) -> SparkConf:
    made = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        made.set("spark." + key.replace("_", "."), value)
    return made


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[4]", 4),
        ("local[4,8]", 4),
        ("local[4, 8]", 4),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,3,1024]", 6),
    ],
)
def test_local_masters_say_it_themselves(master: str, slots: int) -> None:
    assert offered_slots(master, conf()) == slots


def test_a_task_that_takes_several_cores_takes_several_slots() -> None:
    assert offered_slots("local[5]", conf(task_cpus="2")) == 2
    assert offered_slots("local-cluster[2,3,1024]", conf(task_cpus="2")) == 2


def test_a_fixed_number_of_executors_offers_their_cores() -> None:
    assert offered_slots("yarn", conf(executor_instances="3", executor_cores="4")) == 12


def test_a_cluster_that_may_grow_offers_no_fixed_number() -> None:
    growing = conf(executor_instances="3", executor_cores="4", dynamicAllocation_enabled="true")
    assert offered_slots("k8s://https://somewhere:6443", growing) is None
    assert offered_slots("spark://somewhere:7077", conf()) is None
