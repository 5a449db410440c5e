//! `tidegate demo rpc`: one overload, five schemes of overload control side by side.
//!
//! | module | its one job |
//! |---|---|
//! | `show` | five servers with their clients, in virtual time, under the same calls |
//! | `figures` | what the page is shown |
//! | `desk` | the load that is asked for, and the thread that plays |
//! | `headless` | a script and its figures instead of the page |
//!
//! Real servers would compete for the processors of this machine, and the comparison would be of who gets them. In virtual
//! time each scheme has a machine of its own: the production state machines run, told what happens when.

mod desk;
mod figures;
mod headless;
mod show;

use std::sync::Arc;

use tidegate_broker::config::Address;
use tidegate_console::ConsoleConfig;
use tidegate_runtime::telemetry::{self, Format};

use self::desk::{Desk, Player};
use self::show::Show;
use crate::cli::Showing;
use crate::demo::control;
use crate::failure::Failure;
use crate::output::{self, Style};
use crate::servers::{Bound, Servers};
use crate::signals::Signals;
use crate::token::Token;
use crate::up;

/// What the page begins with: already too much, so that the five part while one looks.
const LOAD_AT_START: f64 = 2.0;

pub(crate) fn run(args: &Showing) -> Result<(), Failure> {
    telemetry::init(Format::Human, "warn").map_err(|error| Failure::new(&error).because(error))?;
    if args.headless {
        return headless::run(args.seconds, Style::of(args.json));
    }
    up::runtime()?.block_on(watch(&args.address))
}

async fn watch(address: &str) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let token = Token::generate().map_err(|error| Failure::new("cannot make a token").because(error))?;
    let page = Bound::bind(&super::page_address(address)?).await?;
    let control = Bound::bind(&Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 }).await?;
    let show = Show::new().map_err(Failure::new)?;
    let desk = Arc::new(Desk::new(&show, LOAD_AT_START));
    let player = Player::start(Arc::clone(&desk), show)
        .map_err(|error| Failure::new("cannot start the demo's thread").because(error))?;

    let mut servers = Servers::new();
    let console = ConsoleConfig {
        write_token: token.reveal().to_owned(),
        demo: control.local_authority().map(|authority| format!("http://{authority}")),
        stop: Some(servers.stopping()),
        ..ConsoleConfig::default()
    };
    servers.serve(control, None, control::router(desk));
    let authority = page.local_authority().unwrap_or_default();
    servers.serve(page, None, tidegate_console::router(console));
    output::line(format_args!("http://{authority}/demo#token={}", token.reveal()))?;
    output::line("Open it in a browser. Ctrl-C ends the demo and leaves nothing behind.")?;

    signals.wait().await;
    servers.stop().await;
    tokio::task::spawn_blocking(move || player.stop())
        .await
        .map_err(|error| Failure::new("the demo's thread broke off").because(error))
}
