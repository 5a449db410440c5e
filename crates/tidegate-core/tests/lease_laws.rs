//! The laws of leases: nothing is in force beyond its end, nothing old comes back, and the holder is never the last.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::Instant;
use tidegate_core::lease::{Grant, Granted, InForce, Leases, OnLapse, Refused, Terms};

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Value, revision and length.
    Grant(u8, u64, u64),
    Renew(u64, u64),
    GiveBack(u64),
    Forget,
    Poll,
}

fn steps() -> impl Strategy<Value = Vec<(u8, u64, Step)>> {
    let step = prop_oneof![
        6 => (0u8..3, 0u64..6, 0u64..40).prop_map(|(value, revision, long)| Step::Grant(value, revision, long)),
        3 => (0u64..6, 0u64..40).prop_map(|(revision, long)| Step::Renew(revision, long)),
        1 => (0u64..6).prop_map(Step::GiveBack),
        1 => Just(Step::Forget),
        2 => Just(Step::Poll),
    ];
    vec((0u8..4, 0u64..15, step), 1..80)
}

/// What is known of a key, kept as plainly as possible.
#[derive(Clone, Copy, Debug)]
struct Plain {
    value: u8,
    revision: u64,
    until: u64,
    given_back: bool,
    said: bool,
}

const CAPACITY: usize = 3;

fn grant(model: &mut BTreeMap<u8, Plain>, key: u8, (value, revision, long): (u8, u64, u64), now: u64) -> bool {
    let known = model.get(&key).copied();
    let room = known.is_some() || model.len() < CAPACITY;
    let newer = known.is_none_or(|known| revision > known.revision);
    let same = known.is_some_and(|known| (known.value, known.revision, known.given_back) == (value, revision, false));
    let taken = long > 0 && room && (newer || same);
    if taken {
        let until = if newer { now + long } else { known.map_or(0, |known| known.until).max(now + long) };
        model.insert(key, Plain { value, revision, until, given_back: false, said: false });
    }
    taken
}

proptest! {
    /// The machine agrees with a list that is searched.
    #[test]
    fn leases_are_what_a_plain_list_says(steps in steps()) {
        let mut leases = Leases::new(CAPACITY);
        let mut model: BTreeMap<u8, Plain> = BTreeMap::new();
        let mut now = 0;
        for (key, gap, step) in steps {
            now += gap;
            match step {
                Step::Grant(value, revision, long) => {
                    let on_lapse = OnLapse::Closed;
                    let offer = Grant { value, revision, until: at(now + long), on_lapse };
                    let first = !model.contains_key(&key);
                    let result = leases.grant(key, offer, at(now));
                    prop_assert_eq!(result.is_ok(), grant(&mut model, key, (value, revision, long), now));
                    prop_assert_eq!(result == Ok(Granted::First), first && result.is_ok());
                }
                Step::Renew(revision, long) => {
                    let known = model.get_mut(&key).filter(|known| known.revision == revision && !known.given_back);
                    let taken = known.filter(|_| long > 0).map(|known| {
                        (known.until, known.said) = (known.until.max(now + long), false);
                    });
                    prop_assert_eq!(leases.renew(&key, revision, at(now + long), at(now)).is_ok(), taken.is_some());
                }
                Step::GiveBack(revision) => {
                    let known = model.get_mut(&key).filter(|known| revision >= known.revision);
                    let taken = known.map(|known| (known.revision, known.given_back) = (revision, true));
                    prop_assert_eq!(leases.give_back(&key, revision, at(now)).is_ok(), taken.is_some());
                }
                Step::Forget => {
                    leases.forget(&key);
                    model.remove(&key);
                }
                Step::Poll => {
                    leases.on_timeout(at(now));
                    let mut lapsed = Vec::new();
                    for (&key, known) in &mut model {
                        if known.until <= now && !known.given_back && !std::mem::replace(&mut known.said, true) {
                            lapsed.push((key, known.revision));
                        }
                    }
                    let said = std::iter::from_fn(|| leases.poll_output()).map(|lapse| (lapse.key, lapse.revision));
                    prop_assert_eq!(said.collect::<Vec<_>>(), lapsed);
                }
            }
            for key in 0..4 {
                let expected = model.get(&key).filter(|known| !known.given_back).map(|known| {
                    if now < known.until { InForce::Granted(&known.value) } else { InForce::Closed }
                });
                prop_assert_eq!(leases.in_force(&key, at(now)), expected);
                prop_assert_eq!(leases.revision(&key), model.get(&key).map(|known| known.revision));
            }
            let next = model.values().filter(|known| !known.given_back && known.until > now).map(|known| known.until);
            leases.on_timeout(at(now));
            prop_assert_eq!(leases.next_timeout(), next.min().map(at));
        }
    }
}

/// A clock with an origin and a speed of its own.
#[derive(Clone, Copy, Debug)]
struct Clock {
    offset_ns: u64,
    fast_ppm: i64,
}

impl Clock {
    fn at(self, true_ns: u64) -> Instant {
        let ns = i128::from(true_ns) * i128::from(1_000_000 + self.fast_ppm) / 1_000_000;
        at(self.offset_ns + u64::try_from(ns).expect("time goes on"))
    }
}

fn clocks() -> impl Strategy<Value = Clock> {
    (0u64..1 << 40, -500i64..=500).prop_map(|(offset_ns, fast_ppm)| Clock { offset_ns, fast_ppm })
}

/// What happens at some true instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// The granter hears a request.
    Request,
    /// The holder hears the answer to what it sent when its clock showed this.
    Answer(Instant),
    /// Somebody looks.
    Look,
}

const MS: u64 = 1_000_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Requests and answers are lost, late and doubled: while the holder has the grant, the granter knows that it may.
    #[test]
    fn the_holder_s_end_is_never_after_the_granter_s(
        holder_clock in clocks(),
        granter_clock in clocks(),
        lease_ms in 1u64..5_000,
        requests in vec((0u64..3_000, 0u64..4_000, vec(0u64..9_000, 0..3)), 1..40),
    ) {
        let terms = Terms::new(Duration::from_millis(lease_ms), 1_000);
        let mut events = Vec::new();
        let mut sent = 0;
        for (gap_ms, way_ms, answers_ms) in requests {
            sent += gap_ms * MS + 1;
            let stamp = holder_clock.at(sent);
            events.push((sent + way_ms * MS, Event::Request));
            for answer_ms in answers_ms {
                events.push((sent + (way_ms + answer_ms) * MS, Event::Answer(stamp)));
            }
            for later in [lease_ms * MS - 1, lease_ms * MS, lease_ms * MS + lease_ms * 1_000] {
                events.push((sent + later, Event::Look));
            }
        }
        events.sort_unstable();
        let (mut holder, mut granter) = (Leases::new(1), Leases::new(1));
        let mut granted = false;
        for (true_ns, event) in events {
            let (held_at, granted_at) = (holder_clock.at(true_ns), granter_clock.at(true_ns));
            let offer = |until| Grant { value: (), revision: 1, until, on_lapse: OnLapse::Closed };
            match event {
                Event::Request => {
                    granter.grant((), offer(terms.granter_end(granted_at)), granted_at).expect("it ends later");
                    granted = true;
                }
                Event::Answer(stamp) if granted => {
                    let result = holder.grant((), offer(terms.holder_end(stamp)), held_at);
                    prop_assert!(matches!(result, Ok(_) | Err(Refused::Over)));
                }
                Event::Answer(..) | Event::Look => {}
            }
            let is_held = |held: Option<InForce<'_, ()>>| held.is_some_and(InForce::is_granted);
            prop_assert!(
                !is_held(holder.in_force(&(), held_at)) || is_held(granter.in_force(&(), granted_at)),
                "at {true_ns}: {holder:?} {granter:?}"
            );
        }
    }
}
