//! A Redis Cluster of three primaries and three replicas on free ports; it ends when it is dropped.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::RedisServer;
use super::ports;
use super::wait::eventually;

/// Primaries; each has one replica.
const PRIMARIES: usize = 3;

/// The slots that each primary owns at first.
const SLOTS: [RangeInclusive<u16>; PRIMARIES] = [0..=5460, 5461..=10922, 10923..=16383];

/// Nodes and their ids; the first three are the primaries at first.
pub struct Cluster {
    nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

impl Cluster {
    /// Returns when all slots are served and all replicas are in sync.
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..2 * PRIMARIES).map(|_| node()).collect();
        let ids = nodes
            .iter()
            .map(|node| node.run(&["CLUSTER", "MYID"]))
            .collect();
        let cluster = Self { nodes, ids };
        cluster.form();
        cluster
    }

    fn form(&self) {
        for (index, (node, slots)) in self.nodes.iter().zip(SLOTS).enumerate() {
            node.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            node.run::<()>(&[
                "CLUSTER",
                "ADDSLOTSRANGE",
                &slots.start().to_string(),
                &slots.end().to_string(),
            ]);
        }
        for (met, bus) in self.nodes[1..]
            .iter()
            .map(|node| (node.port().to_string(), bus_port(node)))
        {
            self.nodes[0].run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &met, &bus]);
        }
        for (replica, id) in self.nodes[PRIMARIES..].iter().zip(&self.ids) {
            // A node can replicate only a node that it has met.
            let follows = eventually(|| replica.try_run::<()>(&["CLUSTER", "REPLICATE", id]).ok());
            assert!(follows.is_some(), "{} does not meet {id}", replica.port());
        }
        self.wait_until_ok();
        let synced = || {
            self.nodes[PRIMARIES..].iter().all(|node| {
                node.run::<String>(&["INFO", "replication"])
                    .contains("link_status:up")
            })
        };
        assert!(
            eventually(|| synced().then_some(())).is_some(),
            "the replicas do not get in sync"
        );
    }

    /// Waits until every running node serves all slots, and knows all replicas.
    pub fn wait_until_ok(&self) {
        let is_ok = |node: &RedisServer| {
            let info: String = node.try_run(&["CLUSTER", "INFO"]).unwrap_or_default();
            let nodes: String = node.try_run(&["CLUSTER", "NODES"]).unwrap_or_default();
            info.contains("cluster_state:ok")
                && info.contains("cluster_known_nodes:6")
                && nodes
                    .lines()
                    .filter(|line| line.contains("slave") || line.contains("fail"))
                    .count()
                    == PRIMARIES
        };
        let ok = eventually(|| self.running().all(is_ok).then_some(()));
        assert!(
            ok.is_some(),
            "the cluster does not become ok: {:?}",
            self.running()
                .next()
                .map(|node| node.run::<String>(&["CLUSTER", "NODES"]))
        );
    }

    /// The value of `REDIS_URL`: the addresses of all nodes.
    pub fn url(&self) -> String {
        self.nodes
            .iter()
            .map(RedisServer::url)
            .collect::<Vec<_>>()
            .join(",")
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.runs())
    }

    /// The server on this port.
    pub fn node(&self, port: u16) -> &RedisServer {
        self.nodes
            .iter()
            .find(|node| node.port() == port)
            .unwrap_or_else(|| panic!("no node on port {port}"))
    }

    /// kill -9 of the server on this port.
    pub fn kill(&mut self, port: u16) {
        self.nodes
            .iter_mut()
            .find(|node| node.port() == port)
            .unwrap_or_else(|| panic!("no node on port {port}"))
            .kill();
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        self.running()
            .next()
            .expect("a node runs")
            .run(&["CLUSTER", "KEYSLOT", key])
    }

    /// The port of the primary that owns a slot, according to a running node.
    pub fn owner(&self, slot: u16) -> u16 {
        Self::owner_by(self.running().next().expect("a node runs"), slot)
            .unwrap_or_else(|| panic!("no primary owns slot {slot}"))
    }

    fn owner_by(node: &RedisServer, slot: u16) -> Option<u16> {
        let nodes: String = node.try_run(&["CLUSTER", "NODES"]).ok()?;
        nodes.lines().find_map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            let owns = fields[8..].iter().any(|range| {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let range = (from.parse::<u16>(), to.parse::<u16>());
                matches!(range, (Ok(from), Ok(to)) if (from..=to).contains(&slot))
            });
            let port = fields[1]
                .split(['@', ','])
                .next()?
                .rsplit(':')
                .next()?
                .parse()
                .ok()?;
            (owns && fields[2].contains("master")).then_some(port)
        })
    }

    /// The ports of the primaries that own slots now.
    pub fn primaries(&self) -> Vec<u16> {
        SLOTS
            .iter()
            .map(|slots| self.owner(*slots.start()))
            .collect()
    }

    /// Waits until all running nodes agree on an owner of the slot other than `old`. Returns its
    /// port.
    pub fn wait_for_new_owner(&self, slot: u16, old: u16) -> u16 {
        let found = eventually(|| {
            let owners: Vec<_> = self
                .running()
                .map(|node| Self::owner_by(node, slot))
                .collect();
            let first = owners[0].filter(|&port| port != old)?;
            owners
                .iter()
                .all(|owner| *owner == Some(first))
                .then_some(first)
        });
        found.unwrap_or_else(|| panic!("no primary takes slot {slot} over from {old}"))
    }

    /// Takes a slot away from its owner, and waits until no node knows one.
    pub fn abandon(&self, slot: u16) {
        let owner = self.owner(slot);
        let number = slot.to_string();
        let forget = |node: &RedisServer| {
            let _ = node.try_run::<()>(&["CLUSTER", "DELSLOTS", &number]);
        };
        forget(self.node(owner));
        // A message that was under way may tell a node of the old owner once more.
        let forgotten = eventually(|| {
            self.running().for_each(forget);
            let mut owners = self.running().map(|node| Self::owner_by(node, slot));
            owners.all(|owner| owner.is_none()).then_some(())
        });
        assert!(forgotten.is_some(), "slot {slot} keeps an owner");
    }

    /// Moves a slot with its keys, one at a time, to the primary on another port, and pauses
    /// between the steps.
    pub fn migrate(&self, slot: u16, to: u16, pause: Duration) {
        let from = self.owner(slot);
        let by_port = |port: u16| {
            self.nodes
                .iter()
                .position(|node| node.port() == port)
                .expect("a node of this cluster")
        };
        let (source, target) = (by_port(from), by_port(to));
        let slot = slot.to_string();
        self.nodes[target].run::<()>(&[
            "CLUSTER",
            "SETSLOT",
            &slot,
            "IMPORTING",
            &self.ids[source],
        ]);
        self.nodes[source].run::<()>(&[
            "CLUSTER",
            "SETSLOT",
            &slot,
            "MIGRATING",
            &self.ids[target],
        ]);
        std::thread::sleep(pause);
        let port = to.to_string();
        loop {
            let keys: Vec<String> =
                self.nodes[source].run(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let [key] = &keys[..] else { break };
            self.nodes[source].run::<()>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
            std::thread::sleep(pause);
        }
        let ends = [target, source].into_iter();
        let others = (0..self.nodes.len()).filter(|index| ![target, source].contains(index));
        for index in ends.chain(others) {
            // Replicas learn it from their primary, and refuse the command.
            let _ = self.nodes[index].try_run::<()>(&[
                "CLUSTER",
                "SETSLOT",
                &slot,
                "NODE",
                &self.ids[target],
            ]);
            std::thread::sleep(pause / 4);
        }
    }
}

/// A cluster of one node, which has all slots: like an address in front of several shards, it
/// refuses keys of several slots together.
pub fn one_node() -> RedisServer {
    let server = node();
    server.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let is_up = || {
        let info: String = server.run(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok").then_some(())
    };
    assert!(eventually(is_up).is_some(), "the slots are not served");
    server
}

fn node() -> RedisServer {
    let bus = ports::free().port().to_string();
    let server = RedisServer::start_with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "1000",
        "--cluster-port",
        &bus,
        "--repl-diskless-sync-delay",
        "0",
        "--cluster-require-full-coverage",
        "no",
    ]);
    server.run::<()>(&["CONFIG", "SET", "cluster-replica-validity-factor", "0"]);
    server
}

fn bus_port(node: &RedisServer) -> String {
    let (_, port): (String, String) = node.run(&["CONFIG", "GET", "cluster-port"]);
    port
}
