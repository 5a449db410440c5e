//! `tidegate sim placement`: a topic placed on brokers by the production planner, in virtual time.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tidegate_control::machine::modelled::ModelConfig;
use tidegate_core::Rate;
use tidegate_core::replay::{ServiceModel, Spread};
use tidegate_lab::placement::{ArrivalLaw, PAPER, PlannerName, Played, Policy, Scenario, place};
use tidegate_runtime::config::units::Span;

use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};
use crate::words::ArrivalsWord;

/// `tidegate sim placement`.
#[derive(Debug, Args)]
pub(crate) struct SimPlacementArgs {
    /// Brokers that the topic may be placed on
    #[arg(long, value_name = "N", default_value_t = 6)]
    brokers: u32,
    /// Messages per second that a broker takes within the objective, all topics together
    #[arg(long, value_name = "RATE", default_value = "62k/s")]
    mcap: Rate,
    /// Messages per second of other topics on each broker, such as `10k/s,40k/s`; what is not listed is idle
    #[arg(long, value_name = "RATE", value_delimiter = ',')]
    preload: Vec<Rate>,
    /// The topic's publishers
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    publishers: u32,
    /// Messages of each publisher
    #[arg(long, value_name = "RATE", default_value = "10/s")]
    rate: Rate,
    /// Messages in a batch
    #[arg(long, value_name = "N", default_value_t = 10)]
    batch: u32,
    /// Publishers that send together; 1: none do
    #[arg(long, value_name = "N", default_value_t = 1)]
    group: u32,
    /// The batches of a group are spread over so long
    #[arg(long, value_name = "SPAN", default_value = "0us")]
    spread: Span,
    /// When publishers, or groups of them, send
    #[arg(long, value_enum, default_value = "poisson")]
    arrivals: ArrivalsWord,
    /// The p99 that is promised, from arrival to the end of processing
    #[arg(long, value_name = "SPAN", default_value = "1ms")]
    slo: Span,
    /// By which principles: lb, conc, max-min or srtm
    #[arg(long, value_name = "NAME", default_value = "srtm", value_parser = policy)]
    policy: Policy,
    /// Who plans: paper, by rounds of measurements, or model, which is asked first and confirmed by one measurement
    #[arg(long, value_name = "NAME", default_value = "paper", value_parser = planner)]
    planner: PlannerName,
    /// A core's times in the planner's model over those of the brokers; 1: the model is right
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    model_off: f64,
    /// Exactly so many brokers, measured once and not fitted
    #[arg(long, value_name = "N")]
    force_brokers: Option<u32>,
    /// The limit's rate over that of the publishers
    #[arg(long, value_name = "X", default_value_t = 1.1)]
    margin: f64,
    /// The limit's burst lets this share of the messages pass undelayed, as long as it is one bucket
    #[arg(long, value_name = "X", default_value_t = 0.999)]
    undelayed: f64,
    /// Cores of a broker
    #[arg(long, value_name = "N", default_value_t = PAPER.cores)]
    cores: u16,
    /// What a core spends on a batch, with its first message, on average
    #[arg(long, value_name = "SPAN", default_value = "16us")]
    batch_cost: Span,
    /// What a core spends on each message, on average
    #[arg(long, value_name = "SPAN", default_value = "18us")]
    message_cost: Span,
    /// The rest of a message's way
    #[arg(long, value_name = "SPAN", default_value = "100us")]
    way: Span,
    /// Costs are the same for every message, and not spread without memory
    #[arg(long)]
    constant: bool,
    /// Length of a measurement
    #[arg(long, value_name = "SPAN", default_value = "60s")]
    round: Span,
    /// Of each measurement at most so many seconds are simulated; it counts with its whole length
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    simulate: u32,
    /// Same seed, same answer
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn policy(name: &str) -> Result<Policy, String> {
    Policy::named(name).ok_or_else(|| format!("one of {}", Policy::ALL.map(Policy::name).join(", ")))
}

fn planner(name: &str) -> Result<PlannerName, String> {
    PlannerName::named(name).ok_or_else(|| format!("one of {}", PlannerName::ALL.map(PlannerName::name).join(", ")))
}

#[derive(Serialize)]
struct Answer {
    scenario: Scenario,
    #[serde(flatten)]
    played: Played,
}

pub(crate) fn simulate(args: &SimPlacementArgs) -> Result<(), Failure> {
    let scenario = scenario(args)?;
    let played = place(&scenario).map_err(Failure::usage)?;
    let (meets_slo, missing_per_s) = (played.meets_slo, played.missing_per_s);
    let missed = match played.cause {
        Some(_) => format!("no placement was found for {} messages/s", figure(missing_per_s)),
        None => format!(
            "the topic's p99 of {} us is beyond its objective of {} us",
            figure(played.us_p99),
            figure(scenario.slo_us)
        ),
    };
    match Style::of(args.json) {
        Style::Json => output::json(&Answer { scenario, played })?,
        Style::Table => print(&scenario, &played)?,
    }
    if meets_slo { Ok(()) } else { Err(Failure::slo_missed(missed)) }
}

fn scenario(args: &SimPlacementArgs) -> Result<Scenario, Failure> {
    let ns = |span: Duration, name: &str| {
        u32::try_from(span.as_nanos()).map_err(|_| Failure::usage(format!("{name}: longer than 4 s")))
    };
    let service = ServiceModel {
        cores: args.cores,
        batch_ns: ns(args.batch_cost.0, "--batch-cost")?,
        message_ns: ns(args.message_cost.0, "--message-cost")?,
        way_ns: ns(args.way.0, "--way")?,
        spread: if args.constant { Spread::Constant } else { Spread::Exponential },
    };
    let defaults = Scenario::default();
    let scenario = Scenario {
        brokers: args.brokers,
        mcap: args.mcap,
        preload: args.preload.clone(),
        service,
        publishers: args.publishers,
        publisher_rate: args.rate,
        batch: args.batch,
        group: args.group,
        spread_us: args.spread.0.as_secs_f64() * 1e6,
        arrivals: match args.arrivals {
            ArrivalsWord::Poisson => ArrivalLaw::Poisson,
            ArrivalsWord::Periodic => ArrivalLaw::Periodic,
        },
        slo_us: args.slo.0.as_secs_f64() * 1e6,
        policy: args.policy,
        planner: args.planner,
        model_off: args.model_off,
        force_brokers: args.force_brokers,
        margin: args.margin,
        undelayed: args.undelayed,
        fit: tidegate_lab::placement::FitConfig { round: args.round.0, ..defaults.fit },
        simulated_s_max: args.simulate,
        seed: args.seed,
        ..defaults
    };
    scenario.check().map_err(Failure::usage)?;
    Ok(scenario)
}

fn print(scenario: &Scenario, played: &Played) -> Result<(), Failure> {
    output::line(format!(
        "{} publishers of {}, batches of {}, groups of {}; limit {}, burst {}; {}",
        scenario.publishers,
        scenario.publisher_rate,
        scenario.batch,
        scenario.group,
        played.limit.rate,
        played.limit.burst,
        scenario.policy,
    ))?;
    let mut table = Table::new(&[
        "broker",
        "other topics/s",
        "publishers",
        "rate/s",
        "burst",
        "p99 us",
        "access p99 us",
        "beyond the SLO",
    ]);
    for broker in &played.assignment {
        table.row([
            broker.broker.to_string(),
            figure(broker.preload_per_s),
            broker.publishers.to_string(),
            figure(broker.limit.rate.as_per_s()),
            broker.limit.burst.to_string(),
            figure(broker.us_p99),
            figure(broker.access_us_p99),
            format!("{:.2}%", 100.0 * broker.share_over),
        ]);
    }
    table.print()?;
    let rounds: Vec<String> = played.rounds.iter().map(ToString::to_string).collect();
    output::line(format!(
        "p50 {} us, p99 {} us, objective {} us",
        figure(played.us_p50),
        figure(played.us_p99),
        figure(scenario.slo_us),
    ))?;
    output::line(format!(
        "rounds {}, in force after {} s, {} s until it stood",
        rounds.join("+"),
        figure(played.placed_s),
        figure(played.seconds),
    ))?;
    let simulated = Duration::from_secs_f64(played.simulated_s);
    if simulated < scenario.fit.round {
        output::line(format!(
            "of each round's {} s, {} s were simulated",
            figure(scenario.fit.round.as_secs_f64()),
            figure(played.simulated_s),
        ))?;
    }
    output::line("")?;
    if scenario.planner == PlannerName::Model {
        // What a model says is an estimate, so it must leave something to spare.
        let most = 100.0 * (1.0 - 0.99) * ModelConfig::default().spare;
        output::line(format!(
            "the model takes the fewest brokers with at most {} % beyond the objective on each",
            figure(most)
        ))?;
    }
    played.why.iter().try_for_each(output::line)
}
