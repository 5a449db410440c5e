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

use tidegate_console::ConsoleConfig;

use self::desk::{Desk, Player};
use self::show::Show;
use crate::cli::Showing;
use crate::demo::theatre::{self, Theatre};
use crate::failure::Failure;
use crate::output::Style;
use crate::token::Token;
use crate::up;

/// What the page begins with: already too much, so that the five part while one looks.
const LOAD_AT_START: f64 = 2.0;

pub(crate) fn run(args: &Showing) -> Result<(), Failure> {
    theatre::log_little()?;
    if args.headless {
        return headless::run(args.seconds, Style::of(args.json));
    }
    up::runtime()?.block_on(theatre::watch(&args.address, async || Plants::open()))
}

/// The desk, and who plays at it.
struct Plants {
    desk: Arc<Desk>,
    player: Player,
    token: Token,
}

impl Plants {
    fn open() -> Result<Self, Failure> {
        let token = Token::generate().map_err(|error| Failure::new("cannot make a token").because(error))?;
        let show = Show::new().map_err(Failure::new)?;
        let desk = Arc::new(Desk::new(&show, LOAD_AT_START));
        let player = Player::start(Arc::clone(&desk), show)
            .map_err(|error| Failure::new("cannot start the demo's thread").because(error))?;
        Ok(Self { desk, player, token })
    }
}

impl Theatre for Plants {
    type Stage = Desk;

    fn stage(&self) -> &Arc<Desk> {
        &self.desk
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn console(&self) -> ConsoleConfig {
        ConsoleConfig::default()
    }

    /// The player has a thread of its own, and nothing that could break off.
    async fn play(&self) -> Failure {
        std::future::pending().await
    }

    async fn close(self) -> Result<(), Failure> {
        tokio::task::spawn_blocking(move || self.player.stop())
            .await
            .map_err(|error| Failure::new("the demo's thread broke off").because(error))
    }
}
