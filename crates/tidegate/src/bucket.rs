//! `tidegate theory bucket` and `tidegate sim bucket`: how long messages wait for tokens, computed and simulated.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use tidegate_core::theory::md1::TheoryError;
use tidegate_lab::bucket::{self, Arrivals, Assignment, BucketAnswer, BucketError, BucketQuestion, Split, parse_list};

use crate::cli::{AssignmentWord, BucketArgs, SimBucketArgs};
use crate::failure::Failure;
use crate::output::{self, Style};
use crate::words::ArrivalsWord;

/// A list of a million instants is 20 MB.
const MAX_LIST_BYTES: u64 = 64 << 20;

pub(crate) fn theory(args: &BucketArgs) -> Result<(), Failure> {
    answer(bucket::theory(&question(args)?), args.json)
}

pub(crate) fn simulate(args: &SimBucketArgs) -> Result<(), Failure> {
    let question =
        BucketQuestion { messages: args.messages, warm_up: args.warm_up, seed: args.seed, ..question(&args.bucket)? };
    answer(bucket::simulate(&question), args.bucket.json)
}

fn question(args: &BucketArgs) -> Result<BucketQuestion, Failure> {
    let split = match &args.weights {
        Some(weights) => Split::Weights(weights.clone()),
        None => Split::Even(args.split),
    };
    let assignment = match args.assign {
        AssignmentWord::Batch => Assignment::Batch,
        AssignmentWord::Message => Assignment::Message,
        AssignmentWord::Even => Assignment::Even,
    };
    Ok(BucketQuestion {
        batch: args.batch,
        split,
        assignment,
        ..BucketQuestion::new(arrivals(args)?, args.rate, args.burst)
    })
}

fn arrivals(args: &BucketArgs) -> Result<Arrivals, Failure> {
    match (&args.list, args.offered) {
        (Some(file), _) => read_list(file).map(Arrivals::List),
        (None, None) => Err(Failure::usage("nothing arrives")
            .help("say how much with --offered 10k/s, or exactly when with --list FILE")),
        (None, Some(rate)) => Ok(match args.arrivals {
            ArrivalsWord::Poisson => Arrivals::Poisson { rate },
            ArrivalsWord::Periodic => Arrivals::Periodic { rate, publishers: args.publishers },
        }),
    }
}

fn read_list(file: &Path) -> Result<Vec<tidegate_core::Instant>, Failure> {
    let shown = file.display();
    let read = |from: &mut dyn Read| {
        let mut text = String::new();
        from.take(MAX_LIST_BYTES).read_to_string(&mut text).map(|_| text)
    };
    let text = if file.as_os_str() == "-" {
        read(&mut io::stdin().lock())
    } else {
        fs::File::open(file).and_then(|mut file| read(&mut file))
    };
    let text = text.map_err(|error| Failure::config(format!("cannot read {shown}")).because(error))?;
    parse_list(&text).map_err(|error| Failure::config(format!("{shown}: {error}")))
}

fn answer(answer: Result<BucketAnswer, BucketError>, json: bool) -> Result<(), Failure> {
    let answer = answer.map_err(|error| {
        let failure = Failure::usage(&error);
        match error {
            BucketError::Theory(TheoryError::Load { .. }) => {
                failure.help("what arrives, --offered, must be less than the tokens, --rate")
            }
            BucketError::Split(_) => failure.help("give --burst a token for each part, of which --split says how many"),
            _ => failure,
        }
    })?;
    match Style::of(json) {
        Style::Json => output::json(&answer),
        Style::Table => output::line(answer.to_string().trim_end()),
    }
}
