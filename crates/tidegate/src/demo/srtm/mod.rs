//! `tidegate demo srtm`: what splitting a limit costs on six brokers, and what Tidegate does about it.
//!
//! | module | its one job |
//! |---|---|
//! | `plan` | what is sent, by whom, and what is promised |
//! | `brokers` | six brokers, and what their sensors say |
//! | `troupe` | producers and consumers of an act |
//! | `plane` | a control node, and the address that producers dial |
//! | `pulse` | how busy the machine is with something else |
//! | `told` | all acts in words, and as JSON |
//!
//! Everything runs in this process, over real sockets on loopback: the production broker, six times, the production control
//! and its hop. The load is small, so that two cores are enough: how long a message waits for a token depends on rates and
//! bursts alone, and is longer the smaller they are.

mod brokers;
mod plan;
mod plane;
mod pulse;
mod told;
mod troupe;

use std::time::Duration;

use tidegate_control::io::view::TopicView;
use tidegate_control::machine::director::Phase;
use tidegate_core::number::float;
use tidegate_runtime::clock;
use tokio::time::sleep;

use self::brokers::{Brokers, Seen};
use self::plan::{LENT_TOPIC, Plan, TOPIC};
use self::plane::Plane;
use self::pulse::Pulse;
use self::told::{Act, Teller};
use self::troupe::Troupe;
use super::theatre;
use crate::cli::Srtm;
use crate::failure::{Exit, Failure};
use crate::output::Style;
use crate::scratch::Folder;
use crate::servers::Bound;
use crate::signals::Signals;
use crate::token::Token;
use crate::{control, up};

/// What producers have sent before anything is measured: some busy periods of a sixth of the limit.
const WARM_UP: Duration = Duration::from_secs(5);
/// Brokers count by the second: what is measured lies behind what came before.
const SETTLE: Duration = Duration::from_millis(1_200);
/// How often control is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Control has a plan after this, or none will come. A round has five seconds, and a busy machine may need several.
const PLANNED_WITHIN: Duration = Duration::from_mins(3);
/// What waits when producers pause is delivered after this; in the first act that is less than a second's messages, but after
/// a plan of many rounds on a busy machine more.
const DELIVERED_WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &Srtm) -> Result<(), Failure> {
    theatre::log_little()?;
    up::runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let console = match &args.console {
            Some(address) => Some(control::bind(address).await?),
            None => None,
        };
        let stays = console.is_some();
        let teller = Teller::new(Style::of(args.json));
        let mut show = Show::open(Duration::from_secs(args.seconds), teller).await?;
        let mut ended = tokio::select! {
            played = show.play(console) => played,
            () = signals.wait() => Err(Failure::new("stopped before the end")),
        };
        // Also after a promise that was not kept: the console shows why.
        if stays && ended.as_ref().map_or_else(|failure| failure.exit == Exit::SloMissed, |()| true) {
            show.teller.say("The console stays until Ctrl-C.")?;
            signals.wait().await;
        }
        if let Err(failure) = show.close().await {
            ended = ended.and(Err(failure));
        }
        ended
    })
}

/// What is measured in an act.
struct Measured {
    seen: Vec<Seen>,
    pulse: Pulse,
}

/// Brokers, and what is started for an act.
struct Show {
    plan: Plan,
    teller: Teller,
    measure: Duration,
    brokers: Brokers,
    troupe: Option<Troupe>,
    plane: Option<Plane>,
    token: Token,
    /// Goes last: the brokers write into it while they stop.
    folder: Folder,
}

impl Show {
    async fn open(measure: Duration, teller: Teller) -> Result<Self, Failure> {
        let system = |error: std::io::Error| Failure::new("cannot prepare a folder for the brokers").because(error);
        let folder = Folder::new("demo-srtm").map_err(system)?;
        let token = Token::generate().map_err(system)?;
        let plan = Plan::default();
        teller.introduce(&plan)?;
        let brokers = Brokers::start(&plan, &folder, &token).await?;
        Ok(Self { plan, teller, measure, brokers, troupe: None, plane: None, token, folder })
    }

    async fn play(&mut self, console: Option<Bound>) -> Result<(), Failure> {
        let before = self.split().await?;
        self.teller.act(&before, &self.plan)?;
        let after = self.place(console).await?;
        self.teller.act(&after, &self.plan)?;
        let lent = self.lend().await?;
        self.teller.act(&lent, &self.plan)?;
        self.teller.verdict([&before, &after, &lent], &self.plan)
    }

    /// Without Tidegate: every broker has its share of the limit and of the producers, whatever comes.
    async fn split(&mut self) -> Result<Act, Failure> {
        self.teller.title("Before: a static split")?;
        self.teller.say(format_args!(
            "each broker has its part of the limit, {}, and {} of the producers",
            told::limit(self.plan.part()),
            self.plan.producers / self.plan.brokers,
        ))?;
        self.brokers.limit(true).await?;
        let doors = self.brokers.doors.clone();
        self.troupe = Some(Troupe::start(&self.plan, TOPIC, &doors, &doors).await?);
        sleep(WARM_UP).await;
        let Measured { seen, pulse } = self.measure(TOPIC).await?;
        let counted = self.troupe.as_ref().expect("it was started above").count(DELIVERED_WITHIN).await;
        if let Some(troupe) = self.troupe.take() {
            troupe.stop().await?;
        }
        self.brokers.limit(false).await?;
        let theory_us = self.plan.theory_us(self.plan.brokers);
        Ok(Act { theory_us, ..Act::new("split", self.even(&seen), counted, pulse) })
    }

    /// The same split and the same messages, and what one broker does not need another one may have.
    async fn lend(&mut self) -> Result<Act, Failure> {
        self.teller.title("And split again, with brokers that lend each other tokens")?;
        self.teller.say("each has the part of the first act, and `lend = \"on\"`")?;
        self.brokers.lend().await?;
        let doors = self.brokers.doors.clone();
        // The producers of the second act go on beside, if somebody watches their page.
        let troupe = Troupe::start(&self.plan, LENT_TOPIC, &doors, &doors).await?;
        sleep(WARM_UP).await;
        let (frames, began) = (self.brokers.frames().await?, clock::now());
        let Measured { seen, pulse } = self.measure(LENT_TOPIC).await?;
        let (frames, took) = (self.brokers.frames().await? - frames, clock::now().since(began));
        let counted = troupe.count(DELIVERED_WITHIN).await;
        troupe.stop().await?;
        let messages = self.plan.offered_per_s() * took.as_secs_f64();
        let frames_per_message = Some(float(frames) / messages);
        Ok(Act { frames_per_message, ..Act::new("lent", self.even(&seen), counted, pulse) })
    }

    /// All brokers, each with the same part of the limit.
    fn even(&self, seen: &[Seen]) -> Vec<told::Part> {
        let part = self.plan.part();
        seen.iter().map(|seen| told::Part::of(seen, (part.rate.as_per_s(), part.burst))).collect()
    }

    /// With it: control places the producers, who dial one address.
    async fn place(&mut self, console: Option<Bound>) -> Result<Act, Failure> {
        self.teller.title("After: the same topic, placed by Tidegate")?;
        let plane = self.plane.insert(Plane::start(&self.plan, &self.brokers, &self.folder, &self.token).await?);
        self.teller.say("the limit is declared once, to control; all producers dial one address")?;
        let has_console = console.is_some();
        if let Some(bound) = console {
            let address = plane.serve_console(bound, &self.brokers, &self.token);
            self.teller.say(format_args!("console  {address}"))?;
        }
        let door = plane.door;
        self.troupe = Some(Troupe::start(&self.plan, TOPIC, &self.brokers.doors, &[door]).await?);
        let (topic, planning) = self.planned().await?;
        if topic.phase == Phase::Stands {
            sleep(SETTLE).await;
        }
        let Measured { seen, pulse } = self.measure(TOPIC).await?;
        let topic = self.topic()?;
        let troupe = self.troupe.as_ref().expect("it was started above");
        let counted = troupe.count(DELIVERED_WITHIN).await;
        if has_console {
            troupe.resume();
        }
        let part = |seen: &Seen| {
            let part = topic.parts.iter().find(|part| part.node == seen.name)?;
            (part.limit_burst > 0 && seen.delay.count > 0)
                .then(|| told::Part::of(seen, (part.limit_rate_per_s, part.limit_burst)))
        };
        let parts: Vec<_> = seen.iter().filter_map(part).collect();
        let theory_us = topic.predicted.as_ref().map(|predicted| predicted.split.access_us_p99);
        let plan = told::Planned {
            headline: topic.headline,
            stands: topic.phase == Phase::Stands,
            took_s: topic.planned_in_s,
            pulse: planning,
        };
        Ok(Act { plan: Some(plan), theory_us, ..Act::new("placed", parts, counted, pulse) })
    }

    /// Waits until a plan stands, or control says that there is none, or its time is up; tells what it says meanwhile.
    async fn planned(&self) -> Result<(TopicView, Pulse), Failure> {
        let began = clock::now();
        let until = began + PLANNED_WITHIN;
        let mut pulse = self.pulse();
        let (mut said, mut happened) = (String::new(), None);
        loop {
            let topic = self.topic()?;
            if topic.headline != said && topic.phase != Phase::Follows {
                self.teller.passing("");
                self.teller.say(format_args!("control  {}", topic.headline))?;
                said.clone_from(&topic.headline);
            }
            if topic.events.last() != happened.as_ref() && topic.phase == Phase::Plans {
                happened = topic.events.last().cloned();
                self.teller.passing("");
                happened.iter().try_for_each(|event| self.teller.say(format_args!("control  {event}")))?;
            }
            if matches!(topic.phase, Phase::Stands | Phase::Short) {
                topic.words.iter().try_for_each(|word| self.teller.say(format_args!("because  {word}")))?;
                return Ok((topic, pulse));
            }
            let now = clock::now();
            if now >= until {
                return Ok((topic, pulse));
            }
            self.teller.passing(format_args!("  for {} s", now.since(began).as_secs()));
            self.is_playing()?;
            pulse.rest(LOOK).await;
        }
    }

    fn topic(&self) -> Result<TopicView, Failure> {
        self.plane.as_ref().and_then(Plane::topic).ok_or_else(|| Failure::new("control lost the topic"))
    }

    /// What every broker saw of `topic` in a while from now on.
    async fn measure(&self, topic: &str) -> Result<Measured, Failure> {
        let seconds = self.measure.as_secs();
        // Brokers count what is late by the promise that they were asked about last.
        self.brokers.seen(topic, 1, self.plan.slo).await?;
        let mut pulse = self.pulse();
        for second in 0..seconds {
            self.teller.passing(format_args!("measured {second} of {seconds} s"));
            pulse.rest(Duration::from_secs(1)).await;
            self.is_playing()?;
        }
        pulse.rest(SETTLE).await;
        self.teller.passing("");
        let seen = self.brokers.seen(topic, u32::try_from(seconds).unwrap_or(u32::MAX), self.plan.slo).await?;
        Ok(Measured { seen, pulse })
    }

    /// A stall of a quarter of the promise, and a message that meets it is likely to be late.
    fn pulse(&self) -> Pulse {
        Pulse::new(self.plan.slo / 4)
    }

    fn is_playing(&self) -> Result<(), Failure> {
        let plays = self.troupe.as_ref().is_none_or(Troupe::is_playing);
        plays.then_some(()).ok_or_else(|| Failure::new("a producer or a consumer lost its connection"))
    }

    /// Ends load, control, brokers.
    async fn close(self) -> Result<(), Failure> {
        let Self { brokers, troupe, plane, .. } = self;
        let load = match troupe {
            Some(troupe) => troupe.stop().await,
            None => Ok(()),
        };
        if let Some(plane) = plane {
            plane.stop().await;
        }
        brokers.stop().await.and(load)
    }
}
