//! Threads that do little but read the clock, one for each CPU, behind all others: what keeps them from running keeps
//! others too.

use std::time::Duration;

use thread_priority::ThreadPriority;
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
use tidegate_runtime::clock;

use super::GAP_NS;
use super::record::Seen;
use crate::error::LoadError;
use crate::load_thread::StopSign;
use crate::poll::prepare_thread;

/// Gaps of a probe: 16 MiB. At 5,000 a second, the most that gaps of 200 µs can be, it lasts for three minutes.
const GAPS_MAX: usize = 1 << 20;

/// A probe rests after it has looked for so long, and for so long. One that never rests keeps CPUs from ever being idle;
/// then kernels were seen to leave their own threads, and with them the disk, waiting for seconds.
const LOOK_NS: u64 = 100_000;
const REST: Duration = Duration::from_micros(50);

/// Running probes.
#[derive(Debug)]
pub(super) struct Probes {
    stop: StopSign,
    threads: Vec<std::thread::JoinHandle<Result<Vec<Seen>, LoadError>>>,
}

impl Probes {
    /// One on each of `cpus`.
    pub(super) fn start(cpus: &[u32]) -> Result<Self, LoadError> {
        let stop = StopSign::default();
        let threads = cpus.iter().map(|&cpu| {
            let stop = stop.clone();
            std::thread::Builder::new().name(format!("probe-{cpu}")).spawn(move || probe(cpu, &stop))
        });
        let threads = threads.collect::<Result<_, _>>().map_err(LoadError::os("start a thread"))?;
        Ok(Self { stop, threads })
    }

    /// Ends them; returns their gaps.
    pub(super) fn stop(self) -> Result<Vec<Seen>, LoadError> {
        self.stop.put_up();
        let mut gaps = Vec::new();
        for thread in self.threads {
            gaps.extend(thread.join().expect("a probe panicked")?);
        }
        Ok(gaps)
    }
}

fn probe(cpu: u32, stop: &StopSign) -> Result<Vec<Seen>, LoadError> {
    prepare_thread(Some(cpu))?;
    // It must never delay what it watches: anything that wants the CPU goes first.
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy)
        .map_err(|error| LoadError::os("let a probe stand back")(std::io::Error::other(error)))?;
    let mut gaps = Vec::with_capacity(GAPS_MAX);
    let (mut last, mut rested) = (clock::now(), clock::now());
    while !stop.is_up() {
        if last.nanos_since(rested) > LOOK_NS {
            rested = last;
            #[expect(clippy::disallowed_methods, reason = "a real thread rests in real time, and waits for nothing")]
            std::thread::sleep(REST);
        }
        let now = clock::now();
        if now.nanos_since(last) > GAP_NS {
            if gaps.len() == GAPS_MAX {
                // The last one becomes longer: what is judged with it is judged too mildly, never too hard.
                if let Some(Seen::Gap { to, .. }) = gaps.last_mut() {
                    *to = now;
                }
            } else {
                gaps.push(Seen::Gap { from: last, to: now });
            }
        }
        last = now;
    }
    Ok(gaps)
}
