//! `tidegate sim rpc`: schemes of overload control on one server and its clients, in virtual time.

use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegate_lab::rpc::{Group, Incast, LoadStep, Report, Scenario, Scheme, Service, ServiceLaw, measure_scheme};
use tidegate_runtime::config::units::Span;

use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};

/// `tidegate sim rpc`.
#[derive(Debug, Args)]
pub(crate) struct SimRpcArgs {
    /// Which schemes, side by side, with commas between: tidegate, breakwater, dagor, seda, aqm, `client_rate`, probing,
    /// `static_limit`, none
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "tidegate", value_parser = scheme)]
    scheme: Vec<Scheme>,
    /// Cores of the server
    #[arg(long, value_name = "N", default_value_t = 8)]
    cores: u32,
    /// How long handlers take: the shape
    #[arg(long, value_enum, default_value = "exponential")]
    service: LawWord,
    /// How long handlers take on average
    #[arg(long, value_name = "SPAN", default_value = "10us")]
    service_mean: Span,
    /// What a core pays for each message
    #[arg(long, value_name = "SPAN", default_value = "1us")]
    message_cost: Span,
    /// From a client to the server and back
    #[arg(long, value_name = "SPAN", default_value = "10us")]
    round_trip: Span,
    /// How many clients
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    clients: u32,
    /// What they offer, as a multiple of the capacity
    #[arg(long, value_name = "X", default_value_t = 1.2)]
    load: f64,
    /// The load from --step-at on
    #[arg(long, value_name = "X", requires = "step_at")]
    step_to: Option<f64>,
    /// When the load changes, after the warm-up
    #[arg(long, value_name = "SPAN", requires = "step_to")]
    step_at: Option<Span>,
    /// Bursts of calls at one instant beside that: how many calls
    #[arg(long, value_name = "N", requires = "incast_every")]
    incast: Option<u32>,
    /// Time from burst to burst
    #[arg(long, value_name = "SPAN", requires = "incast")]
    incast_every: Option<Span>,
    /// The longest response time that counts; by default ten times the mean service plus the round trip
    #[arg(long, value_name = "SPAN")]
    slo: Option<Span>,
    /// How long after the call its answer is worthless, as the calls say; by default they say nothing
    #[arg(long, value_name = "SPAN")]
    deadline: Option<Span>,
    /// Measured virtual time
    #[arg(long, value_name = "SPAN", default_value = "2s")]
    duration: Span,
    /// Virtual time before that
    #[arg(long, value_name = "SPAN", default_value = "100ms")]
    warm_up: Span,
    /// Goodput and p99 over time as well, in JSON, in bins of this length
    #[arg(long, value_name = "SPAN", requires = "json")]
    bin: Option<Span>,
    /// Priorities of the calls, 0 most and 255 least, and their weights, such as `0=1,128=5,255=4`
    #[arg(long, value_name = "N=WEIGHT", value_delimiter = ',', value_parser = weighted)]
    priorities: Vec<Weighted>,
    /// Tenants, an equal number of clients each, and their weights in the load, such as `1=1,2=1,3=100`
    #[arg(long, value_name = "N=WEIGHT", value_delimiter = ',', value_parser = weighted)]
    tenants: Vec<Weighted>,
    /// Same seed, same answer
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The shape of the service time, on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LawWord {
    Constant,
    Exponential,
    Bimodal,
}

/// `number=weight`.
#[derive(Clone, Copy, Debug)]
struct Weighted {
    number: u32,
    weight: f64,
}

fn weighted(text: &str) -> Result<Weighted, String> {
    let parsed = text.split_once('=').and_then(|(number, weight)| {
        Some(Weighted { number: number.trim().parse().ok()?, weight: weight.trim().parse().ok()? })
    });
    parsed
        .filter(|found| found.weight.is_finite() && found.weight > 0.0)
        .ok_or_else(|| "a number and its weight, such as 128=5".to_owned())
}

fn scheme(name: &str) -> Result<Scheme, String> {
    Scheme::named(name).ok_or_else(|| format!("one of {}", Scheme::NAMES.join(", ")))
}

/// One scheme's figures.
#[derive(Serialize)]
struct Run {
    scheme: &'static str,
    report: Report,
}

#[derive(Serialize)]
struct Answer {
    scenario: Scenario,
    runs: Vec<Run>,
}

pub(crate) fn simulate(args: &SimRpcArgs) -> Result<(), Failure> {
    let scenario = scenario(args)?;
    let run = |scheme: &Scheme| {
        let report = measure_scheme(&scenario, scheme).map_err(|error| Failure::usage(&error))?;
        Ok(Run { scheme: scheme.name(), report })
    };
    let runs = args.scheme.iter().map(run).collect::<Result<Vec<_>, Failure>>()?;
    match Style::of(args.json) {
        Style::Json => output::json(&Answer { scenario, runs }),
        Style::Table => print(&scenario, &runs),
    }
}

fn scenario(args: &SimRpcArgs) -> Result<Scenario, Failure> {
    let law = match args.service {
        LawWord::Constant => ServiceLaw::Constant,
        LawWord::Exponential => ServiceLaw::Exponential,
        LawWord::Bimodal => ServiceLaw::Bimodal,
    };
    let incast = args.incast.zip(args.incast_every).map(|(calls, every)| Incast { calls, every: every.0 });
    let scenario = Scenario {
        cores: args.cores,
        service: Service { law, mean: args.service_mean.0 },
        message_cost: args.message_cost.0,
        round_trip: args.round_trip.0,
        groups: groups(args)?,
        incast,
        slo: args.slo.map(|span| span.0),
        deadline: args.deadline.map(|span| span.0),
        warm_up: args.warm_up.0,
        duration: args.duration.0,
        bin: args.bin.map(|span| span.0),
        seed: args.seed,
        ..Scenario::default()
    };
    scenario.check().map_err(|error| Failure::usage(&error))?;
    Ok(scenario)
}

fn groups(args: &SimRpcArgs) -> Result<Vec<Group>, Failure> {
    let mut priorities = Vec::new();
    for one in &args.priorities {
        let number = u8::try_from(one.number).map_err(|_| Failure::usage("a priority is at most 255"))?;
        priorities.push((tidegate_lab::rpc::Priority(number), one.weight));
    }
    let all = [Weighted { number: 0, weight: 1.0 }];
    let tenants = if args.tenants.is_empty() { &all[..] } else { &args.tenants };
    let count = u32::try_from(tenants.len()).unwrap_or(u32::MAX);
    let clients = args.clients / count;
    if clients == 0 {
        return Err(Failure::usage("fewer clients than tenants").help("give more with --clients"));
    }
    let sum: f64 = tenants.iter().map(|tenant| tenant.weight).sum();
    let step = args.step_to.zip(args.step_at);
    let group = |tenant: &Weighted| {
        let share = tenant.weight / sum;
        let step = step.map(|(load, at)| LoadStep { at: args.warm_up.0 + at.0, load: load * share });
        Group {
            clients,
            load: args.load * share,
            steps: step.into_iter().collect(),
            tenant: tidegate_lab::rpc::Tenant(tenant.number),
            plain: false,
            priorities: priorities.clone(),
        }
    };
    Ok(tenants.iter().map(group).collect())
}

fn print(scenario: &Scenario, runs: &[Run]) -> Result<(), Failure> {
    output::line(format!(
        "capacity {} calls/s, SLO {} us, {} clients, {} s of virtual time",
        figure(scenario.capacity()),
        figure(scenario.slo().as_secs_f64() * 1e6),
        scenario.clients(),
        figure(scenario.duration.as_secs_f64()),
    ))?;
    let mut table = Table::new(&[
        "scheme",
        "load",
        "goodput/s",
        "of capacity",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "refused/s",
        "at client",
        "notice p99 us",
        "extra msgs/call",
    ]);
    for Run { scheme, report } in runs {
        let at_server = report.sheds.request + report.sheds.start;
        let refused = float(report.sheds.client + at_server);
        table.row([
            (*scheme).to_owned(),
            figure(report.offered_per_s / report.capacity_per_s),
            figure(report.goodput_per_s),
            format!("{:.3}", report.goodput_of_capacity),
            figure(report.response.p50_us),
            figure(report.response.p99_us),
            figure(report.response.p999_us),
            figure(refused / report.seconds),
            if refused > 0.0 {
                format!("{:.0}%", 100.0 * float(report.sheds.client) / refused)
            } else {
                "-".to_owned()
            },
            figure(report.notice.p99_us),
            figure(report.extra_messages_per_call),
        ]);
    }
    table.print()?;
    runs.iter().try_for_each(shares)
}

/// Who got what, if there is more than one priority or tenant.
fn shares(run: &Run) -> Result<(), Failure> {
    let mut table = Table::new(&["", "number", "offered/s", "goodput/s", "within the SLO"]);
    let (priorities, tenants) = (&run.report.by_priority, &run.report.by_tenant);
    if priorities.is_empty() && tenants.is_empty() {
        return Ok(());
    }
    let named = priorities.iter().map(|share| ("priority", share)).chain(tenants.iter().map(|share| ("tenant", share)));
    for (what, share) in named {
        table.row([
            what.to_owned(),
            share.key.to_string(),
            figure(share.offered_per_s),
            figure(share.goodput_per_s),
            format!("{:.4}", share.in_slo),
        ]);
    }
    output::line(format!("\n{}", run.scheme))?;
    table.print()?;
    if tenants.is_empty() {
        Ok(())
    } else {
        output::line(format!("Jain's index of the tenants' goodput {:.4}", run.report.jain))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}
