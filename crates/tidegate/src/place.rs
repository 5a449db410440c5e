//! `tidegate place`: finds the brokers for a topic anew, or says what a new plan would be.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use hyper::Method;
use tidegate_control::io::dry_run::DryRun;
use tidegate_core::Instant;
use tidegate_runtime::clock;
use tidegate_runtime::config::units::Span;

use crate::admin_client::{AdminClient, Of, load_token};
use crate::failure::Failure;
use crate::output::{self, Style, Table, figure};
use crate::placed::{self, ControlAt, Placed};

/// How often it is looked whether the plan stands.
const LOOK: Duration = Duration::from_secs(1);
/// Control has begun to plan after this.
const BEGINS: Duration = Duration::from_millis(1_500);

/// `tidegate place`.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// The topic, a `[[control.topic]]` of control's file
    topic: String,
    /// Only say what a new plan would be: publishers, limits and brokers stay as they are
    #[arg(long)]
    dry_run: bool,
    /// Do not wait until the plan stands
    #[arg(long, conflicts_with = "dry_run")]
    no_wait: bool,
    /// How long to wait for it
    #[arg(long, value_name = "SPAN", default_value = "10m", conflicts_with = "dry_run")]
    timeout: Span,
    #[command(flatten)]
    at: ControlAt,
    /// The file with control's token
    #[arg(long, value_name = "FILE", default_value = "tidegate-data/admin.token", value_hint = ValueHint::FilePath)]
    token_file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PlaceArgs) -> Result<(), Failure> {
    let token = load_token(&args.token_file, Of::Control)?;
    let client = AdminClient { of: Of::Control, address: args.at.control.clone(), token: Some(token) };
    let query = if args.dry_run { "?dry_run=true" } else { "" };
    let path = format!("/api/v1/place/{}{query}", args.topic.replace('#', "%23"));
    let answer = client.ask(Method::POST, &path, None)?;
    if args.dry_run {
        let told: DryRun = serde_json::from_value(answer.clone()).map_err(|error| {
            Failure::new(format!("{} is no control that this version knows", client.address)).because(error)
        })?;
        match Style::of(args.json) {
            Style::Json => output::json(&answer)?,
            Style::Table => show(&args.topic, &told)?,
        }
        return missing(told.placed, told.missing_per_s);
    }
    if args.no_wait {
        return match Style::of(args.json) {
            Style::Json => output::json(&answer),
            Style::Table => output::line(format_args!("{}: a plan is being made", args.topic)),
        };
    }
    wait(args, &client)
}

fn missing(placed: bool, missing_per_s: f64) -> Result<(), Failure> {
    if placed {
        return Ok(());
    }
    Err(Failure::slo_missed(format!("there is no placement: {} messages/s have no broker", figure(missing_per_s)))
        .help("add brokers to control.nodes, raise their mcap if it is too careful, or relax the objective"))
}

/// Shows the plan when it stands.
fn wait(args: &PlaceArgs, client: &AdminClient) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| Failure::new("cannot start").because(error))?;
    let pause = |span| runtime.block_on(tokio::time::sleep(span));
    let until: Instant = clock::now() + args.timeout.0;
    pause(BEGINS);
    loop {
        let Some((value, placed)) = placed::ask(client, &args.topic)? else {
            return Err(Failure::new(format!("control does not know {} any more", args.topic)));
        };
        if has_ended(&placed) {
            match Style::of(args.json) {
                Style::Json => output::json(&value)?,
                Style::Table => placed.show()?,
            }
            return missing(placed.phase != "short", placed.missing_per_s);
        }
        if clock::now() >= until {
            return Err(Failure::new(format!("{} is not placed yet: {}", args.topic, placed.headline))
                .help("control goes on; `tidegate explain TOPIC` shows how far it is"));
        }
        pause(LOOK);
    }
}

fn has_ended(placed: &Placed) -> bool {
    matches!(placed.phase.as_str(), "stands" | "short" | "ended")
}

fn show(topic: &str, told: &DryRun) -> Result<(), Failure> {
    output::line(format_args!("{topic}: {}", told.headline))?;
    output::line("dry run  simulated with arrivals at random at the publishers' rates; nothing was changed")?;
    output::line(format_args!("sent     {}/s by {} publishers", figure(told.rate_per_s), told.publishers))?;
    for word in &told.words {
        output::line(format_args!("because  {word}"))?;
    }
    let rounds: Vec<String> = told.rounds.iter().map(ToString::to_string).collect();
    output::line(format_args!(
        "planned  in {} s if it were real, rounds {}",
        figure(told.planned_in_s),
        rounds.join("+")
    ))?;
    output::line("")?;
    let mut table =
        Table::new(&["broker", "publishers", "share %", "rate", "burst", "p99 ms", "tokens p99 ms", "beyond %"]);
    let ms = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| figure(us / 1e3));
    for part in &told.parts {
        table.row([
            part.node.clone(),
            part.publishers.to_string(),
            figure(100.0 * part.share),
            output::rate(part.limit_rate_per_s),
            part.limit_burst.to_string(),
            ms(part.delay_us_p99),
            ms(part.access_us_p99),
            part.share_over.map_or_else(|| "-".to_owned(), |share| figure(100.0 * share)),
        ]);
    }
    table.print()
}
