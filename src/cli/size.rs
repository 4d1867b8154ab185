//! `weir size`: what a load needs, from measured figures. The flags are the load; `plan` is the
//! arithmetic, `measured` its table, and `report` what the reader sees.

pub(super) mod amount;
pub mod measured;
mod plan;
mod report;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, value_parser};

use super::{UsageError, print};
use crate::core::algorithm::AlgorithmKind;
use report::SizeReport;

#[derive(Args, Clone, Debug)]
#[command(after_help = "Amounts: 500, 50k, 2.5M, 1G.\n\n\
    Example: weir size --rate 50k --keys 2M --algorithm token_bucket --redis cluster\n\n\
    Every figure is computed from measurements on one machine (benches/README.md). Measure with \
        your own load before you rely on them.")]
pub(super) struct Size {
    /// Decisions per second at the peak: requests, times the descriptors of a request that have a
    /// limit; 1 to 1G
    #[arg(long, value_name = "AMOUNT", value_parser = amount::rate, allow_hyphen_values = true)]
    rate: f64,
    /// Different keys, such as users or addresses, that are counted within one window; 1 to 100G
    #[arg(long, value_name = "AMOUNT", value_parser = amount::keys, allow_hyphen_values = true)]
    keys: f64,
    /// Descriptors of a request that have a limit; 1 to 256
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = value_parser!(u32).range(1..=256), allow_hyphen_values = true)]
    descriptors: u32,
    /// Algorithm of the limits
    #[arg(long, value_name = "NAME", default_value = "fixed_window", value_parser = algorithms())]
    algorithm: AlgorithmKind,
    /// Limits have `track_usage`, so that the usage of each key's subject is recorded
    #[arg(long)]
    usage: bool,
    /// Kind of Redis deployment; none: counters are in the memory of one process
    #[arg(
        long,
        value_name = "none|single|sentinel|cluster",
        default_value = "single"
    )]
    redis: RedisKind,
    /// Threads of a replica (WORKERS), a core each; 1 to 1024
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = value_parser!(u32).range(1..=1_024), allow_hyphen_values = true)]
    workers: u32,
    /// Envoys that ask, each over four connections; 1 to 1000000 [default: a connection for each
    /// 1,000 requests/s]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=1_000_000), allow_hyphen_values = true)]
    envoys: Option<u32>,
    /// Format of the output: text for people, json for programs
    #[arg(long, default_value = "text", value_name = "text|json")]
    format: print::Format,
}

/// The kinds of Redis deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RedisKind {
    /// None: counters are in the memory of one process.
    None,
    /// One server.
    Single,
    /// A primary with a replica, behind three Sentinels.
    Sentinel,
    /// Redis Cluster, a replica for each primary.
    Cluster,
}

impl Size {
    /// Requests per second.
    fn requests(&self) -> f64 {
        self.rate / f64::from(self.descriptors)
    }

    /// What usage adds, if it is recorded.
    fn with_usage(&self, added: f64) -> f64 {
        if self.usage { added } else { 0.0 }
    }
}

/// The names of the algorithms, as in files.
fn algorithms() -> impl TypedValueParser<Value = AlgorithmKind> {
    PossibleValuesParser::new(AlgorithmKind::NAMED.map(|(name, _)| name)).try_map(|name| {
        let named = AlgorithmKind::NAMED.iter();
        let mut kinds = named.filter_map(|&(known, kind)| (known == name).then_some(kind));
        kinds.next().ok_or("no algorithm")
    })
}

pub(super) fn run(size: &Size) -> anyhow::Result<ExitCode> {
    if f64::from(size.descriptors) > size.rate {
        return Err(UsageError(format!(
            "{} decisions in a request of which there is less than one a second: --rate counts \
             decisions, which are requests times descriptors",
            size.descriptors
        ))
        .into());
    }
    size.format.print(&plan::report(size), SizeReport::text)?;
    Ok(ExitCode::SUCCESS)
}
