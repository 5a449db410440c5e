//! A demo's slider and the button beside it: what is asked for, and what is offered, spike included.

use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate_core::Instant;
use tokio::sync::watch;

use super::control::BadLoad;

/// What the button does, and for how long.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spike {
    pub(crate) length: Duration,
    pub(crate) load: SpikeLoad,
}

/// What is offered during a spike.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum SpikeLoad {
    /// So much beside what the slider says.
    Beside(f64),
    /// This, whatever the slider says.
    Instead(f64),
}

/// Who sends follows [`subscribe`](Self::subscribe).
#[derive(Debug)]
pub(crate) struct Slider {
    range: RangeInclusive<f64>,
    spike: Spike,
    load: f64,
    spike_until: Option<Instant>,
    offered: watch::Sender<f64>,
}

impl Slider {
    pub(crate) fn new(load: f64, range: RangeInclusive<f64>, spike: Spike) -> Self {
        Self { range, spike, load, spike_until: None, offered: watch::Sender::new(load) }
    }

    /// The load to offer; changes at once when the page changes it.
    pub(crate) fn subscribe(&self) -> watch::Receiver<f64> {
        self.offered.subscribe()
    }

    /// What is asked for, without the spike.
    pub(crate) fn load(&self) -> f64 {
        self.load
    }

    /// What is offered now.
    pub(crate) fn offered(&self) -> f64 {
        *self.offered.borrow()
    }

    pub(crate) fn is_spiking(&self) -> bool {
        self.spike_until.is_some()
    }

    /// A spike that is under way goes on.
    pub(crate) fn set_load(&mut self, load: f64) -> Result<(), BadLoad> {
        BadLoad::check(load, &self.range)?;
        self.load = load;
        self.offer();
        Ok(())
    }

    /// One that is under way begins anew.
    pub(crate) fn spike(&mut self, now: Instant) {
        self.spike_until = Some(now + self.spike.length);
        self.offer();
    }

    /// Ends a spike that is over.
    pub(crate) fn on_time(&mut self, now: Instant) {
        if self.spike_until.is_some_and(|end| end <= now) {
            self.spike_until = None;
            self.offer();
        }
    }

    fn offer(&self) {
        self.offered.send_replace(match (self.is_spiking(), self.spike.load) {
            (false, _) => self.load,
            (true, SpikeLoad::Beside(more)) => self.load + more,
            (true, SpikeLoad::Instead(load)) => load,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn slider(load: SpikeLoad) -> Slider {
        Slider::new(0.8, 0.2..=3.0, Spike { length: Duration::from_secs(3), load })
    }

    #[test]
    fn a_spike_goes_on_when_the_slider_moves_and_ends_at_what_it_says() {
        for (load, during) in [(SpikeLoad::Beside(3.0), [3.8, 4.5]), (SpikeLoad::Instead(2.0), [2.0, 2.0])] {
            let mut slider = slider(load);
            let offered = slider.subscribe();
            let mut seen = Vec::new();
            slider.spike(s(10));
            seen.push(*offered.borrow());
            slider.set_load(1.5).unwrap();
            seen.push(*offered.borrow());
            slider.on_time(s(12));
            assert!(slider.is_spiking());
            slider.on_time(s(13));
            assert!(!slider.is_spiking());
            seen.push(*offered.borrow());
            let wanted = [during[0], during[1], 1.5];
            assert!(seen.iter().zip(wanted).all(|(seen, wanted)| (seen - wanted).abs() < 1e-9), "{load:?}: {seen:?}");
        }
    }

    #[test]
    fn loads_beyond_it_are_refused() {
        let mut slider = slider(SpikeLoad::Beside(1.0));
        for load in [0.1, 3.1, f64::NAN, -1.0, f64::INFINITY] {
            assert!(slider.set_load(load).is_err(), "{load}");
        }
        assert_eq!(slider.set_load(4.0).unwrap_err().to_string(), "load 4 is not between 0.2 and 3");
    }
}
