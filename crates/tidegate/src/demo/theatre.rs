//! What every demo does that sends real load: a page or a script asks for it, and in the end nothing is left behind.

use std::sync::Arc;
use std::time::Duration;

use tidegate_broker::config::Address;
use tidegate_console::ConsoleConfig;
use tidegate_runtime::telemetry::{self, Format};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::control::{self, Controlled};
use crate::failure::Failure;
use crate::output;
use crate::servers::{Bound, Servers};
use crate::signals::Signals;
use crate::token::Token;

/// How often figures are taken. The page asks as often.
pub(crate) const SAMPLE: Duration = Duration::from_millis(250);

/// A demo with everything that it needs.
pub(crate) trait Theatre: Sized {
    /// What page and script read and move.
    type Stage: Controlled;

    fn stage(&self) -> &Arc<Self::Stage>;

    /// Lets the page write.
    fn token(&self) -> &Token;

    /// Whose figures the page shows, beside the demo's own.
    fn console(&self) -> ConsoleConfig;

    /// Plays until something breaks off.
    async fn play(&self) -> Failure;

    /// Ends it. What broke off by itself says why.
    async fn close(self) -> Result<(), Failure>;
}

/// Warnings only: the demo's own words are what is to be read.
pub(crate) fn log_little() -> Result<(), Failure> {
    telemetry::init(Format::Human, "warn").map(drop).map_err(|error| Failure::new(&error).because(error))
}

/// Plays for a page at `address`, until a signal comes.
pub(crate) async fn watch<T: Theatre>(
    address: &str,
    open: impl AsyncFnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    // Ports are taken before anything is started.
    let page = Bound::bind(&page_address(address)?).await?;
    let control = Bound::bind(&anywhere()).await?;
    let theatre = open().await?;

    let mut servers = Servers::new();
    let token = theatre.token().reveal();
    let console = ConsoleConfig {
        write_token: token.to_owned(),
        demo: control.local_authority().map(|authority| format!("http://{authority}")),
        stop: Some(servers.stopping()),
        ..theatre.console()
    };
    servers.serve(control, None, control::router(Arc::clone(theatre.stage())));
    let authority = page.local_authority().unwrap_or_default();
    servers.serve(page, None, tidegate_console::router(console));
    output::line(format_args!("http://{authority}/demo#token={token}"))?;
    output::line("Open it in a browser. Ctrl-C ends the demo and leaves nothing behind.")?;

    let broken = tokio::select! {
        broken = theatre.play() => Err(broken),
        () = signals.wait() => Ok(()),
    };
    servers.stop().await;
    let closed = theatre.close().await;
    broken.and(closed)
}

/// Offers one load after the other, each for its time, and returns the stage as it is then.
pub(crate) async fn perform<T: Theatre>(
    script: &[(f64, Duration)],
    open: impl AsyncFnOnce() -> Result<T, Failure>,
) -> Result<Arc<T::Stage>, Failure> {
    let mut signals = Signals::listen()?;
    let theatre = open().await?;
    let stage = Arc::clone(theatre.stage());
    let played = async {
        for (load, length) in script {
            stage.set_load(*load).map_err(Failure::new)?;
            tokio::time::sleep(*length).await;
        }
        Ok(())
    };
    let ended = tokio::select! {
        done = played => done,
        broken = theatre.play() => Err(broken),
        () = signals.wait() => Err(Failure::new("stopped before the end")),
    };
    let closed = theatre.close().await;
    ended.and(closed)?;
    Ok(stage)
}

/// Follows the load that is asked for and takes the figures, until `sample` says that there will be no more.
pub(crate) async fn follow(
    mut asked: watch::Receiver<f64>,
    offer: impl Fn(f64),
    sample: impl Fn() -> Result<(), Failure>,
) -> Failure {
    let mut ticks = interval(SAMPLE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            changed = asked.changed() => {
                if changed.is_err() {
                    return Failure::new("the demo lost its stage");
                }
                offer(*asked.borrow_and_update());
            }
            _ = ticks.tick() => {
                if let Err(failure) = sample() {
                    return failure;
                }
            }
        }
    }
}

/// A port of loopback that the system picks.
pub(crate) fn anywhere() -> Address {
    Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 }
}

pub(crate) fn page_address(text: &str) -> Result<Address, Failure> {
    let parsed = text.rsplit_once(':').and_then(|(host, port)| {
        let host = host.trim_matches(['[', ']']).to_owned();
        Some(Address::Tcp { host, port: port.parse().ok()? })
    });
    parsed.ok_or_else(|| {
        Failure::usage(format!("{text:?} is no address")).help("write address:port, such as 127.0.0.1:7070")
    })
}
