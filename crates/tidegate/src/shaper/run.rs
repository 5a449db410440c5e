//! `tidegate shaper` alone, and `tidegate shaper clear`.

use std::net::TcpStream;
use std::path::Path;

use tidegate_runtime::causes::with_causes;
use tidegate_runtime::config::{ConfigError, Document};
use tidegate_runtime::process::Phase;
use tidegate_runtime::telemetry;
use tidegate_shaper::config::Config;
use tidegate_shaper::io::clear::{Cleared, clear};
use tidegate_shaper::machine::device::Mode;

use super::RunArgs;
use super::running::{ShaperReload, ShaperRunning, failed};
use crate::control::bind;
use crate::failure::Failure;
use crate::output;
use crate::settings::{self, Settings};
use crate::signals::{Hangups, Signals};
use crate::token::Token;
use crate::up;

/// `tidegate shaper`: runs until a signal ends it.
pub(super) fn serve(args: &RunArgs, settings: &Settings, config: Config) -> Result<(), Failure> {
    telemetry::init(settings.log_format, &args.log).map_err(|error| Failure::usage(&error).because(error))?;
    let token = Token::load_or_create(&settings.token_file).map_err(|error| {
        let help = error.remedy();
        Failure::new(&error).help(help).because(error)
    })?;
    let file = args.config.clone();
    up::runtime()?.block_on(async {
        let (mut signals, mut hangups) = (Signals::listen()?, Hangups::listen()?);
        // The console's port too is taken before a device is touched.
        let console = match &args.console {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let mut running = ShaperRunning::start(config, &token).await?;
        running.introduce()?;
        if let Some(bound) = console {
            let address = running.show(bound, &token)?;
            output::console(&format!("{address}/shaper"), Some((&token, &settings.token_file)))?;
        }
        up::tell_supervisor(Phase::Ready);
        let mut reload = running.reload();
        hangups.follow(signals.wait(), async || hangup(&mut reload, &file).await).await;
        tracing::info!("stopping: the trees stay, and their rates hold");
        up::tell_supervisor(Phase::Stopping);
        running.stop().await;
        Ok(())
    })
}

async fn hangup(reload: &mut ShaperReload, file: &Path) {
    let read = || -> Result<Option<Config>, ConfigError> {
        let document = Document::read(file)?;
        Ok(Settings::from_document(&document, &settings::host())?.shaper)
    };
    match read() {
        Ok(config) => {
            if reload.reload(config).await == 0 {
                tracing::info!("SIGHUP: the file was read again; it changes nothing but what was changed live");
            }
        }
        Err(error) => {
            tracing::warn!(error = with_causes(&error), "SIGHUP: the file has an error, so the shaper stays as it is");
        }
    }
}

/// `tidegate shaper clear`.
pub(super) fn clear_all(config: &Config) -> Result<(), Failure> {
    if let Some(admin) = config.admin.filter(|admin| TcpStream::connect(admin).is_ok()) {
        return Err(Failure::new(format!("a shaper runs: something answers at {admin}"))
            .help("stop it first: it would make the trees again within a second"));
    }
    for device in &config.devices {
        let outcome = clear(device).map_err(failed)?;
        let said = match (outcome, device.mode) {
            (Cleared::Removed, _) => "the tree is removed",
            (Cleared::None, Mode::Own) => "there is no tree of ours",
            (Cleared::None, Mode::Attach) => "the tree is somebody else's",
            (Cleared::Absent, _) => "the device is not there",
        };
        output::line(format_args!("{}: {said}", device.name))?;
    }
    Ok(())
}
