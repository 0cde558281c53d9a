from __future__ import annotations

import json

from headrace.protocol.routes import (
    BrokerData,
    ClusterInfo,
    MappingDetail,
    MessageQueue,
    QueueData,
    TopicConfig,
    TopicRoute,
    dumps,
    loads,
)

CLUSTER = b"""{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911"},
"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}},
"clusterAddrTable":{"DefaultCluster":["broker-a"]}}"""

STATIC = b"""{"topicName":"s","readQueueNums":2,"attributes":{"cleanup.policy":"COMPACTION"},
"mappingDetail":{"bname":"b","currIdMap":{0:0,1:1},"epoch":9,"hostedQueues":{0:[{"bname":"b",
"endOffset":-1,"gen":0,"logicOffset":0,"queueId":0}]},"scope":"__global__","topic":"s"}}"""


def route_of(*brokers: tuple[str, dict[str, str], int]) -> TopicRoute:
    return TopicRoute(
        broker_datas=[
            BrokerData(broker_name=name, broker_addrs=addresses) for name, addresses, _ in brokers
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=1, perm=perm)
            for name, _, perm in brokers
        ],
    )


def test_cluster_of_a_real_name_server_is_read() -> None:
    info = loads(CLUSTER, ClusterInfo)
    assert info.broker_addr_table["broker-a"].master == "127.0.0.1:10911"
    assert info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}


def test_static_topic_of_a_real_broker_is_read() -> None:
    config = loads(STATIC, TopicConfig)
    assert config.attributes == {"cleanup.policy": "COMPACTION"}
    assert isinstance(config.mapping_detail, MappingDetail)
    assert config.mapping_detail.curr_id_map == {"0": 0, "1": 1}
    assert config.mapping_detail.hosted_queues["0"][0].end_offset == -1


def test_route_is_written_for_java() -> None:
    written = json.loads(dumps(route_of(("b", {"0": "127.0.0.1:1"}, 6))))
    assert written == {
        "brokerDatas": [
            {
                "cluster": "",
                "brokerName": "b",
                "brokerAddrs": {"0": "127.0.0.1:1"},
                "enableActingMaster": False,
            }
        ],
        "queueDatas": [
            {
                "brokerName": "b",
                "readQueueNums": 2,
                "writeQueueNums": 1,
                "perm": 6,
                "topicSysFlag": 0,
            }
        ],
        "filterServerTable": {},
    }


def test_queues_follow_permissions_and_masters() -> None:
    route = route_of(
        ("c", {"0": "c:1"}, 4), ("a", {"1": "a:2"}, 6), ("b", {"0": "b:1"}, 2), ("d", {}, 6)
    )
    assert list(route.readable_queues("t")) == [
        MessageQueue("t", name, queue_id) for name in "acd" for queue_id in (0, 1)
    ]
    assert list(route.writable_queues("t")) == [MessageQueue("t", "b", 0)]
    assert route.address_of("a") is None
    assert route.address_of("nobody") is None


def test_replica_with_the_lowest_id_is_read_when_there_is_no_master() -> None:
    assert BrokerData(broker_addrs={"10": "x", "2": "y"}).readable == "y"
    assert BrokerData(broker_addrs={"10": "x", "0": "m"}).readable == "m"
    assert BrokerData().readable is None
