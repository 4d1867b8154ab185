//! The memory that the process may use, and the part of it that each user of memory gets.
//!
//! The memory that clients and a control plane can make Weir hold is bounded in bytes. All of these
//! bounds follow from one number. Together they stay below the limit at which the kernel kills the
//! process, which would lose all counts in memory.
//!
//! Independent constants, each of them right, added up to twice the limit in the manifests. Large
//! messages get half of the budget for unfinished things, because they wait and are never closed to
//! make room for others: the memory of a call that is being answered is not free when its charge
//! ends.

use std::fs;
use std::path::{Component, Path};

use crate::core::text::number_after;

const MIB: u64 = 1 << 20;

/// The parts of the limit. The rest is for the process itself: code, limits, metrics, heaviest
/// subjects, logs, and the allocator's fragmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// All of it, in bytes.
    pub limit: u64,
    /// For open gRPC connections, which wait or are served.
    pub connections: u64,
    /// For unfinished work of clients: parts of messages, unread answers, header blocks,
    /// handshakes, bodies.
    pub unfinished: u64,
    /// For counters in memory.
    pub store: u64,
    /// For limits: of files with their texts, or of a control plane, while they are read. Limits
    /// that are replaced are in the process's own part until they are freed.
    pub resources: u64,
}

impl Shares {
    /// Minimum for the process itself. If the limit is less than twice this, it gets half.
    const PROCESS: u64 = 32 * MIB;
    /// More is of no use for connections: 10,000 busy ones, with TLS.
    const MOST_CONNECTIONS: u64 = 880 * MIB;
    /// More would only wait for longer.
    const MOST_UNFINISHED: u64 = 256 * MIB;
    /// A control plane sends at most 64 MiB, which are some 400,000 limits.
    const MOST_RESOURCES: u64 = 2_048 * MIB;

    /// The shares of a limit: an eighth is for the process itself, and of the rest two sevenths
    /// each for connections, unfinished things and the store, and one for resources. The store also
    /// gets the excess over the others' ceilings.
    pub fn of(limit: u64) -> Self {
        let process = (limit / 8).max(Self::PROCESS).min(limit / 2);
        let rest = limit - process;
        let part = rest / 7;
        let connections = (2 * part).min(Self::MOST_CONNECTIONS);
        let unfinished = (2 * part).min(Self::MOST_UNFINISHED);
        let resources = part.min(Self::MOST_RESOURCES);
        Self {
            limit,
            connections,
            unfinished,
            resources,
            store: rest - connections - unfinished - resources,
        }
    }
}

/// The limit if neither the operating system nor a setting has one; the same as in the manifests.
pub const DEFAULT_LIMIT: u64 = 512 * MIB;

/// The limit of the control groups that this process is in (`cgroup`), or the memory of the
/// `machine`, whichever is smaller, and its source; `default` if neither can be read.
pub fn limit_of_this_process() -> (u64, &'static str) {
    limit_below(Path::new("/"))
}

/// The limit and its source, read from the files below this root.
fn limit_below(root: &Path) -> (u64, &'static str) {
    let machine = fs::read_to_string(root.join("proc/meminfo"))
        .ok()
        .and_then(|text| number_after(&text, "MemTotal:")?.checked_mul(1_024));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| limit_of_group(root, line));
    let group = limits.min();
    match (group, machine) {
        // Version 1 reports no limit as a number that is more than any machine has.
        (Some(group), machine) if group < machine.unwrap_or(1 << 60) => (group, "cgroup"),
        (_, Some(machine)) => (machine, "machine"),
        (_, None) => (DEFAULT_LIMIT, "default"),
    }
}

/// The least limit of a group and its parents; `line` is one of `/proc/self/cgroup`: a number, the
/// controllers, and the path. In a container, the path may be the host's, which does not exist
/// there; then its own group is at the root.
///
/// Source: cgroups(7) of Linux.
fn limit_of_group(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (folder, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        several if several.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let inside: std::path::PathBuf = Path::new(path)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    // "max" is not a number: no limit.
    let limit = |group: &Path| {
        let path = root.join(folder).join(group).join(file);
        fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    inside.ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        #[test]
        fn the_shares_are_less_than_the_limit(
            limit in prop_oneof![any::<u64>(), 0..(4_u64 << 30)],
        ) {
            let shares = Shares::of(limit);
            let sum = [
                shares.connections,
                shares.unfinished,
                shares.store,
                shares.resources,
            ]
            .into_iter()
            .map(u128::from)
            .sum::<u128>();
            let process = u128::from(limit) - sum;
            prop_assert!(
                process >= u128::from(limit / 8)
                    && process >= u128::from(Shares::PROCESS.min(limit / 2))
            );
            // More memory is never a smaller share.
            let more = Shares::of(limit.saturating_add(MIB));
            prop_assert!(
                more.connections >= shares.connections && more.unfinished >= shares.unfinished
            );
            prop_assert!(more.resources >= shares.resources);
        }
    }

    #[test]
    fn usual_limits_have_useful_shares() {
        let mib = |limit: u64| {
            let shares = Shares::of(limit * MIB);
            [
                shares.connections,
                shares.unfinished,
                shares.store,
                shares.resources,
            ]
            .map(|share| share / MIB)
        };
        assert_eq!(mib(64), [9, 9, 9, 4]);
        assert_eq!(mib(512), [128, 128, 128, 64]);
        assert_eq!(mib(64 << 10), [880, 256, 54_160, 2_048]);
    }

    /// A root folder with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:        8388608 kB\nMemFree:         100 kB\n",
    );

    #[test]
    fn the_least_limit_of_a_group_and_its_parents_applies() {
        let group = ("proc/self/cgroup", "0::/kubepods/pod1/weir\n");
        let files = [
            MEMINFO,
            group,
            ("sys/fs/cgroup/kubepods/pod1/weir/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
        ];
        assert_eq!(limit_below(root(&files).path()), (8 << 30, "machine"));
        let parent = root(
            &[
                &files[..],
                &[("sys/fs/cgroup/kubepods/pod1/memory.max", "268435456\n")],
            ]
            .concat(),
        );
        assert_eq!(limit_below(parent.path()), (256 * MIB, "cgroup"));
        // A container whose own group is at the root of what it sees.
        let container = root(&[MEMINFO, group, ("sys/fs/cgroup/memory.max", "536870912\n")]);
        assert_eq!(limit_below(container.path()), (512 * MIB, "cgroup"));
        let outside = root(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/../other\n"),
            ("sys/fs/cgroup/memory.max", "536870912\n"),
        ]);
        assert_eq!(limit_below(outside.path()), (512 * MIB, "cgroup"));
    }

    #[test]
    fn version_1_is_read_too() {
        let group = (
            "proc/self/cgroup",
            "11:cpu,cpuacct:/docker/a\n9:memory:/docker/a\n1:name=systemd:/docker/a\n",
        );
        let limited = root(&[
            MEMINFO,
            group,
            (
                "sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes",
                "134217728\n",
            ),
        ]);
        assert_eq!(limit_below(limited.path()), (128 * MIB, "cgroup"));
        let unlimited = root(&[
            MEMINFO,
            group,
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(limit_below(unlimited.path()), (8 << 30, "machine"));
    }

    #[test]
    fn what_cannot_be_read_is_no_limit() {
        let group = ("proc/self/cgroup", "0::/a\nnonsense\n");
        assert_eq!(
            limit_below(root(&[MEMINFO, group]).path()),
            (8 << 30, "machine")
        );
        assert_eq!(
            limit_below(root(&[group]).path()),
            (DEFAULT_LIMIT, "default")
        );
    }
}
