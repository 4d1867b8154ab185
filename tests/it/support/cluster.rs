//! A Redis Cluster of three primaries and three replicas on free ports; gone when dropped.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::RedisServer;
use super::ports;
use super::wait::eventually;

/// Primaries; each has one replica.
const PRIMARIES: usize = 3;

/// What each primary owns at first.
const SLOTS: [RangeInclusive<u16>; PRIMARIES] = [0..=5460, 5461..=10922, 10923..=16383];

/// Nodes and their ids; the first three were the primaries at first.
pub struct Cluster {
    nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

impl Cluster {
    /// All slots served and all replicas in sync.
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..2 * PRIMARIES).map(|_| node()).collect();
        let ids = nodes.iter().map(|node| node.run(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes, ids };
        cluster.form();
        cluster
    }

    fn form(&self) {
        for (index, (node, slots)) in self.nodes.iter().zip(SLOTS).enumerate() {
            node.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            node.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &slots.start().to_string(), &slots.end().to_string()]);
        }
        for (met, bus) in self.nodes[1..].iter().map(|node| (node.port().to_string(), bus_port(node))) {
            self.nodes[0].run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &met, &bus]);
        }
        for (replica, id) in self.nodes[PRIMARIES..].iter().zip(&self.ids) {
            // A node can follow only whom it has met.
            let follows = eventually(|| replica.try_run::<()>(&["CLUSTER", "REPLICATE", id]).ok());
            assert!(follows.is_some(), "{} does not meet {id}", replica.port());
        }
        self.wait_until_ok();
        let synced = || self.nodes[PRIMARIES..].iter().all(|node| node.run::<String>(&["INFO", "replication"]).contains("link_status:up"));
        assert!(eventually(|| synced().then_some(())).is_some(), "the replicas do not get in sync");
    }

    /// Waits until every node that lives serves all slots, and knows all replicas as such.
    pub fn wait_until_ok(&self) {
        let is_ok = |node: &RedisServer| {
            let info: String = node.try_run(&["CLUSTER", "INFO"]).unwrap_or_default();
            let nodes: String = node.try_run(&["CLUSTER", "NODES"]).unwrap_or_default();
            info.contains("cluster_state:ok")
                && info.contains("cluster_known_nodes:6")
                && nodes.lines().filter(|line| line.contains("slave") || line.contains("fail")).count() == PRIMARIES
        };
        let ok = eventually(|| self.living().all(is_ok).then_some(()));
        assert!(
            ok.is_some(),
            "the cluster does not get well: {:?}",
            self.living().next().map(|node| node.run::<String>(&["CLUSTER", "NODES"]))
        );
    }

    /// How `REDIS_URL` names it: by some of its nodes.
    pub fn url(&self) -> String {
        self.nodes.iter().map(RedisServer::url).collect::<Vec<_>>().join(",")
    }

    fn living(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.runs())
    }

    /// The server on this port.
    pub fn node(&self, port: u16) -> &RedisServer {
        self.nodes.iter().find(|node| node.port() == port).unwrap_or_else(|| panic!("no node on port {port}"))
    }

    /// kill -9 of the server on this port.
    pub fn kill(&mut self, port: u16) {
        self.nodes.iter_mut().find(|node| node.port() == port).unwrap_or_else(|| panic!("no node on port {port}")).kill();
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        self.living().next().expect("a node lives").run(&["CLUSTER", "KEYSLOT", key])
    }

    /// The port of the primary that owns a slot, as the other living nodes say.
    pub fn owner(&self, slot: u16) -> u16 {
        Self::owner_by(self.living().next().expect("a node lives"), slot).unwrap_or_else(|| panic!("nobody owns slot {slot}"))
    }

    fn owner_by(node: &RedisServer, slot: u16) -> Option<u16> {
        let nodes: String = node.try_run(&["CLUSTER", "NODES"]).ok()?;
        nodes.lines().find_map(|line| {
            let fields: Vec<_> = line.split(' ').collect();
            let owns = fields[8..].iter().any(|range| {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
            });
            let port = fields[1].split(['@', ',']).next()?.rsplit(':').next()?.parse().ok()?;
            (owns && fields[2].contains("master")).then_some(port)
        })
    }

    /// The ports of the primaries that own slots now.
    pub fn primaries(&self) -> Vec<u16> {
        SLOTS.iter().map(|slots| self.owner(*slots.start())).collect()
    }

    /// Waits until every living node says that somebody else than `old` owns the slot; who does.
    pub fn wait_for_new_owner(&self, slot: u16, old: u16) -> u16 {
        let found = eventually(|| {
            let owners: Vec<_> = self.living().map(|node| Self::owner_by(node, slot)).collect();
            let first = owners[0].filter(|&port| port != old)?;
            owners.iter().all(|owner| *owner == Some(first)).then_some(first)
        });
        found.unwrap_or_else(|| panic!("nobody takes slot {slot} over from {old}"))
    }

    /// Moves a slot with its keys, one at a time, to the primary on another port, and pauses between the steps.
    pub fn migrate(&self, slot: u16, to: u16, pause: Duration) {
        let from = self.owner(slot);
        let by_port = |port: u16| self.nodes.iter().position(|node| node.port() == port).expect("one of ours");
        let (source, target) = (by_port(from), by_port(to));
        let slot = slot.to_string();
        self.nodes[target].run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[source]]);
        self.nodes[source].run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[target]]);
        std::thread::sleep(pause);
        let port = to.to_string();
        loop {
            let keys: Vec<String> = self.nodes[source].run(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let [key] = &keys[..] else { break };
            self.nodes[source].run::<()>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
            std::thread::sleep(pause);
        }
        let ends = [target, source].into_iter();
        let others = (0..self.nodes.len()).filter(|index| ![target, source].contains(index));
        for index in ends.chain(others) {
            // Replicas learn it from their primary, and say so.
            let _ = self.nodes[index].try_run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[target]]);
            std::thread::sleep(pause / 4);
        }
    }
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::support::exclusive;

    #[test]
    fn forms_fails_over_and_migrates() {
        let _exclusive = exclusive();
        let began = Instant::now();
        let mut cluster = Cluster::start();
        println!("up after {:?}", began.elapsed());
        let slot = cluster.slot("{a}1");
        let owner = cluster.owner(slot);
        let keys: Vec<String> = (0..3).map(|number| format!("{{a}}{number}")).collect();
        for key in &keys {
            cluster.node(owner).run::<()>(&["SET", key, "1"]);
        }
        let target = *cluster.primaries().iter().find(|&&port| port != owner).expect("another primary");
        cluster.migrate(slot, target, Duration::ZERO);
        assert_eq!(cluster.owner(slot), target);
        assert_eq!(cluster.node(target).run::<i64>(&["EXISTS", &keys[0], &keys[1], &keys[2]]), 3);
        cluster.kill(target);
        let heir = cluster.wait_for_new_owner(slot, target);
        assert!(![owner, target].contains(&heir));
        assert_eq!(cluster.node(heir).run::<i64>(&["EXISTS", &keys[0]]), 1);
    }
}
