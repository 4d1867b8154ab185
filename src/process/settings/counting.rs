//! The settings of how limits count where their files say nothing.

use std::sync::Arc;

use clap::Args;

use super::{Backend, parse};
use crate::limits::rules::Commit;
use crate::limits::rules::compile::ProcessDefaults;
use crate::limits::rules::region::RegionShare;
use crate::store::redis::Topology;

/// How limits count.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Counting", mut_args = parse::switch)]
pub(super) struct CountingFlags {
    /// Count a refused request nowhere, in domains that do not declare `commit`
    ///
    /// These domains are then as if they declared `commit: all_or_none`; one that declares
    /// `commit: each` is not changed. In Redis, all keys of such a domain are in one hash slot, which
    /// is on one node of a cluster, and its limits per second are counted in the main Redis.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    stop_cache_key_increment_when_overlimit: bool,
    /// Count fixed windows per month by the calendar, in UTC
    ///
    /// Without it a month is 30 days. The counters of the two are apart. Other algorithms have no
    /// windows that begin at a boundary: for them a month is 30 days in any case, and so is a
    /// year 365.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) use_calendar_month_rate_limit: bool,
    /// Name of the region of this process in `region_shares`
    ///
    /// Weir admits this region's share of each limit that has `region_shares`. Without a name such
    /// limits are an error.
    #[arg(long, env, default_value = "", value_name = "TEXT")]
    region: String,
    /// Share of this region of each limit without `region_shares`: a percentage such as 40%
    ///
    /// Every amount and burst is multiplied by it and rounded down, to 1 at least. The shares of all
    /// regions together are at most 100% for the regions to keep to the limit.
    #[arg(long, env, default_value = "100%", value_name = "PERCENT")]
    region_share: RegionShare,
}

impl CountingFlags {
    /// What these settings say for all limits, wherever they come from.
    pub(super) fn process(&self) -> ProcessDefaults {
        let commit = if self.stop_cache_key_increment_when_overlimit {
            Commit::AllOrNone
        } else {
            Commit::Each
        };
        ProcessDefaults {
            commit,
            calendar_months: self.use_calendar_month_rate_limit,
            region: Some(self.region.as_str().into()).filter(|name: &Arc<str>| !name.is_empty()),
            region_share: self.region_share,
        }
    }

    /// Adds what these settings cost with this backend.
    pub(super) fn warn(&self, backend: &Backend, warnings: &mut Vec<String>) {
        let Backend::Redis { main, per_second } = backend else {
            return;
        };
        if !self.stop_cache_key_increment_when_overlimit {
            return;
        }
        let mut costs = Vec::new();
        if matches!(main.topology, Topology::Cluster(_)) {
            costs.push(
                "all counters of a domain are in one hash slot, on one node of the Redis Cluster",
            );
        }
        if per_second.is_some() {
            costs.push(
                "limits per second are counted in the Redis of REDIS_URL, not in that of \
                 REDIS_PERSECOND_URL",
            );
        }
        if !costs.is_empty() {
            let costs = costs.join("; ");
            warnings.push(format!(
                "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true has a cost in domains that do not \
                 declare `commit: each`: {costs}"
            ));
        }
    }
}
