//! A thread that keeps devices as configured, and reads each second what their classes do.
//!
//! The trees stay when it ends, however it ends: the rates hold without it. Programs go with it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use tidegate_core::Instant;
use tidegate_runtime::causes::with_causes;
use tidegate_runtime::clock;
use tokio::sync::{oneshot, watch};

use super::batch_timers;
pub use super::managed::Switch;
use super::managed::{AnyLoader, Managed};
use super::programs::Loader;
use super::view::ShaperView;
use crate::config::Config;
use crate::error::ShaperError;
use crate::io::clear::clear;
use crate::machine::device::{Device, Unchangeable};
use crate::machine::line_rate::LineRate;

/// How often devices are looked after.
const PERIOD: Duration = Duration::from_secs(1);
/// Commands that wait at most; each takes some milliseconds.
const COMMANDS_MAX: usize = 16;

/// Asks for something, and says where the answer goes.
enum Command {
    /// The agent is dropped.
    End,
    Reload(Box<Config>, oneshot::Sender<()>),
    SetClass(Change, oneshot::Sender<Result<(), ChangeError>>),
    Switch(Switch, oneshot::Sender<Result<(), ChangeError>>),
}

/// A change of what a class may send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// As [`super::view::DeviceView::id`].
    pub device: String,
    /// Its name.
    pub class: String,
    /// Guaranteed from now on.
    pub rate: LineRate,
    /// At most from now on. `None`: as before if it was above the rate and still is, else the rate.
    pub ceil: Option<LineRate>,
}

/// Why a change is not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// There is no such device.
    #[error("there is no device `{id}`")]
    NoDevice {
        /// As asked.
        id: String,
    },
    /// The device cannot be changed so.
    #[error(transparent)]
    Refused(#[from] Unchangeable),
    /// The kernel refuses it.
    #[error("the kernel did not take it")]
    Kernel(#[source] ShaperError),
    /// Too many changes wait, or the agent has ended.
    #[error("the agent takes no more changes now")]
    Busy,
}

/// The agent, while it runs. Dropping it ends the agent; the trees stay.
pub struct Agent {
    /// `None` only while it is dropped.
    handle: Option<AgentHandle>,
    thread: Option<JoinHandle<()>>,
}

/// Asks an agent.
#[derive(Clone)]
pub struct AgentHandle {
    commands: SyncSender<Command>,
    view: watch::Receiver<Arc<ShaperView>>,
}

impl Agent {
    /// Shapes the devices of `config`. Those that are not there are waited for. Without a `loader` the trees alone hold.
    ///
    /// # Errors
    /// If this process may not change devices, or one is shaped by somebody else: then none is touched. If the kernel refuses a tree.
    pub fn start(config: Config, loader: Option<Box<dyn Loader>>) -> Result<Self, ShaperError> {
        may_change_devices(&config)?;
        if config.batch_timers {
            batch_timers(true)?;
        }
        if loader.is_none() {
            tracing::warn!(
                "there are no programs: the rates hold, but rules put no packet into a class, and queues are long"
            );
        }
        let (commands, received) = sync_channel(COMMANDS_MAX);
        let (sender, view) = watch::channel(Arc::default());
        let (started, start) = sync_channel(1);
        let run = move || {
            let batch_timers = config.batch_timers;
            let mut devices: Vec<Managed> = config.devices.into_iter().map(Managed::new).collect();
            let mut loader: AnyLoader = loader;
            let checked = devices.iter().try_for_each(Managed::check);
            let looked = checked.and_then(|()| devices.iter_mut().try_for_each(|device| device.look(&mut loader)));
            let is_well = looked.is_ok();
            let mut running = Running { devices, batch_timers, loader, view: sender };
            running.publish();
            // Whoever started us waits for it.
            let _ = started.send(looked);
            if is_well {
                running.run(&received);
            }
        };
        let thread = thread::Builder::new().name("shaper".to_owned()).spawn(run);
        let thread = thread.map_err(|source| ShaperError::Thread { source })?;
        start.recv().expect("the thread says how it started")?;
        Ok(Self { handle: Some(AgentHandle { commands, view }), thread: Some(thread) })
    }

    /// Asks it.
    #[must_use]
    pub fn handle(&self) -> AgentHandle {
        self.handle.clone().expect("it is taken only when the agent is dropped")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Handles of others end at the next answer that does not come.
        if let Some(handle) = self.handle.take() {
            let _ = handle.commands.send(Command::End);
        }
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl AgentHandle {
    /// What is shown, as of the last second.
    #[must_use]
    pub fn view(&self) -> Arc<ShaperView> {
        Arc::clone(&self.view.borrow())
    }

    /// Says when there is another view, each second and after each change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<ShaperView>> {
        self.view.clone()
    }

    /// Puts `config` in force. A device that is not in it any more loses its tree.
    pub async fn reload(&self, config: Config) -> Result<(), ChangeError> {
        self.ask(|answer| Command::Reload(Box::new(config), answer)).await
    }

    /// Changes what a class may send, while packets pass; until the file is read again.
    ///
    /// # Errors
    /// If there is no such class, or the kernel refuses it.
    pub async fn set_class(&self, change: Change) -> Result<(), ChangeError> {
        self.ask(|answer| Command::SetClass(change, answer)).await?
    }

    /// Switches the control of all devices, until the file is read again.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub async fn switch(&self, control: Switch) -> Result<(), ChangeError> {
        self.ask(|answer| Command::Switch(control, answer)).await?
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, ChangeError> {
        let (sender, answer) = oneshot::channel();
        self.commands.try_send(command(sender)).map_err(|error| match error {
            TrySendError::Full(_) | TrySendError::Disconnected(_) => ChangeError::Busy,
        })?;
        answer.await.map_err(|_| ChangeError::Busy)
    }
}

/// What the thread has.
struct Running {
    devices: Vec<Managed>,
    batch_timers: bool,
    loader: AnyLoader,
    view: watch::Sender<Arc<ShaperView>>,
}

impl Running {
    fn run(&mut self, commands: &Receiver<Command>) {
        let mut next = clock::now() + PERIOD;
        loop {
            match commands.recv_timeout(until(next)) {
                // Nobody can ask any more, which is the same.
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {
                    for device in &mut self.devices {
                        // It is said where it is kept.
                        let _ = device.look(&mut self.loader);
                    }
                    // After a delay no second is made up for.
                    next = clock::now() + PERIOD;
                    self.publish();
                }
            }
        }
    }

    /// What is shown changes before the answer is given. An answer that nobody waits for any more is dropped.
    fn obey(&mut self, command: Command) {
        match command {
            Command::End => {}
            Command::Reload(config, answer) => {
                self.reload(*config);
                self.publish();
                let _ = answer.send(());
            }
            Command::SetClass(change, answer) => {
                let changed = self.set_class(&change);
                if changed.is_ok() {
                    let Change { device, class, rate, .. } = change;
                    tracing::info!(device, class, %rate, "the rate of a class was changed");
                }
                self.publish();
                let _ = answer.send(changed);
            }
            Command::Switch(control, answer) => {
                let mut switched = Ok(());
                for device in &mut self.devices {
                    switched = switched.and(device.switch(control, &mut self.loader).map_err(ChangeError::Kernel));
                }
                tracing::info!(?control, "the control of all devices was switched");
                self.publish();
                let _ = answer.send(switched);
            }
        }
    }

    fn reload(&mut self, config: Config) {
        if config.batch_timers != self.batch_timers {
            match batch_timers(config.batch_timers) {
                Ok(()) => self.batch_timers = config.batch_timers,
                Err(error) => tracing::warn!(error = with_causes(&error), "the timers of HTB stay as they are"),
            }
        }
        let mut before = std::mem::take(&mut self.devices);
        for device in config.devices {
            let managed = match before.iter().position(|managed| managed.is(&device)) {
                Some(at) => {
                    let mut managed = before.swap_remove(at);
                    if managed.device().mode == device.mode {
                        // What fails is said, shown, and tried again.
                        let _ = managed.switch(Switch::On, &mut self.loader);
                        let _ = managed.want(device, &mut self.loader);
                        managed
                    } else {
                        // It begins anew; our tree, if there is one, goes.
                        forget(managed);
                        Managed::new(device)
                    }
                }
                None => Managed::new(device),
            };
            self.devices.push(managed);
        }
        before.into_iter().for_each(forget);
        for device in &mut self.devices {
            let _ = device.look(&mut self.loader);
        }
    }

    fn set_class(&mut self, change: &Change) -> Result<(), ChangeError> {
        let ids = self.ids();
        let at = ids.iter().position(|id| *id == change.device);
        let managed = at.and_then(|at| self.devices.get_mut(at));
        let managed = managed.ok_or_else(|| ChangeError::NoDevice { id: change.device.clone() })?;
        let changed = managed.device().changed(&change.class, change.rate, change.ceil)?;
        managed.want(changed, &mut self.loader).map_err(ChangeError::Kernel)
    }

    /// Names of the devices: with their namespace where several have the same.
    fn ids(&self) -> Vec<String> {
        let of = |managed: &Managed| {
            let Device { name, namespace, .. } = managed.device();
            let is_alone = self.devices.iter().filter(|other| other.device().name == *name).count() == 1;
            match namespace {
                Some(namespace) if !is_alone => format!("{name}@{}", namespace.display()),
                _ => name.clone(),
            }
        };
        self.devices.iter().map(of).collect()
    }

    fn publish(&mut self) {
        let ids = self.ids();
        let devices = self.devices.iter_mut().zip(ids).map(|(device, id)| device.view(id)).collect();
        self.view.send_replace(Arc::new(ShaperView { devices }));
    }
}

/// Sets how HTB waits, on the whole host.
fn batch_timers(is_on: bool) -> Result<(), ShaperError> {
    match batch_timers::set(is_on).map_err(|source| ShaperError::BatchTimers { source })? {
        batch_timers::Set::Changed => tracing::warn!(is_on, "htb_hysteresis was set, for all devices of this host"),
        batch_timers::Set::AsBefore => {}
    }
    Ok(())
}

/// Says early what would fail only when a device is there.
fn may_change_devices(config: &Config) -> Result<(), ShaperError> {
    let has_right = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    match config.devices.first() {
        Some(device) if !has_right => {
            Err(ShaperError::NotPermitted { device: device.name.clone(), source: Errno::PERM.into() })
        }
        _ => Ok(()),
    }
}

/// A device that the file does not name any more: its programs are detached and our tree goes.
fn forget(managed: Managed) {
    let device = managed.device().clone();
    drop(managed);
    match clear(&device) {
        Ok(outcome) => tracing::info!(device = device.name, ?outcome, "the device is not shaped any more"),
        Err(error) => {
            tracing::warn!(device = device.name, error = with_causes(&error), "its tree could not be removed");
        }
    }
}

fn until(next: Instant) -> Duration {
    next.since(clock::now())
}
