//! Which names the system is asked for, and what it said of them last.
//!
//! The system's lookup can neither be ended nor be told how long it may take. So each name is looked up once at a time,
//! by one of a few threads, and the result is for all that asked meanwhile.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use tidegate_core::Instant;

/// Lookups at once.
pub const AT_ONCE_MAX: usize = 16;
/// Of these, those of names that were not found of late or took long: they leave the others to names that are well.
const DOUBTFUL_MAX: usize = AT_ONCE_MAX / 2;
/// Names that are known at once. Without room a name is not looked up.
pub const NAMES_MAX: usize = 4_096;
/// A result is taken for as long, whatever came of it: a name is looked up once a second at most.
const YOUNG: Duration = Duration::from_secs(1);
/// Addresses are taken for as long, if nothing is known against them.
const KEPT: Duration = Duration::from_secs(30);
/// A lookup that takes longer makes its name a doubtful one.
const SLOW: Duration = Duration::from_secs(1);
/// Addresses of one name that are kept; more add only delay.
pub const ADDRESSES_MAX: usize = 4;

/// Addresses, one at least; or why there are none.
pub type Found = Result<Vec<IpAddr>, String>;

/// Names that the system is asked for.
#[derive(Clone, Debug, Default)]
pub struct Lookups {
    names: BTreeMap<String, Entry>,
    /// Names under way.
    at_once: usize,
    /// Of these, doubtful ones.
    doubtful: usize,
    /// Names that ever waited.
    waited: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    state: State,
    last: Option<Last>,
    /// It was not found the last time, or took long.
    is_doubtful: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nobody waits for it.
    Idle,
    /// It waits for a thread, behind those with smaller numbers.
    Waiting(u64),
    /// A thread looks it up.
    Asked { at: Instant, is_doubtful: bool },
}

#[derive(Clone, Debug)]
struct Last {
    found: Found,
    at: Instant,
}

/// What one that asks wants to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    /// When it began to ask.
    pub began: Instant,
    /// Addresses that were found before are known to be no good.
    pub spoilt: Option<Instant>,
}

/// What one that asks gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// This.
    Known(Found),
    /// It is to ask again when a lookup has ended.
    Soon,
}

impl Lookups {
    /// What is known of a name. If that is not enough, it is looked up.
    pub fn ask(&mut self, name: &str, question: Question) -> Reply {
        if let Some(entry) = self.names.get_mut(name) {
            if let Some(last) = entry.last.as_ref().filter(|last| last.answers(question)) {
                return Reply::Known(last.found.clone());
            }
            if entry.state == State::Idle {
                entry.state = wait(&mut self.waited);
            }
            return Reply::Soon;
        }
        if self.names.len() >= NAMES_MAX {
            self.names.retain(|_, entry| entry.state != State::Idle);
        }
        if self.names.len() >= NAMES_MAX {
            return Reply::Known(Err(format!("{NAMES_MAX} other names are looked up")));
        }
        let state = wait(&mut self.waited);
        self.names.insert(name.to_owned(), Entry { state, last: None, is_doubtful: false });
        Reply::Soon
    }

    /// The name that the next free thread is to look up; its end is told by [`on_found`](Self::on_found). O(names).
    pub fn next(&mut self, now: Instant) -> Option<String> {
        if self.at_once >= AT_ONCE_MAX {
            return None;
        }
        let may = |entry: &Entry| !entry.is_doubtful || self.doubtful < DOUBTFUL_MAX;
        let waiting = self.names.iter_mut().filter_map(|(name, entry)| match entry.state {
            State::Waiting(place) if may(entry) => Some((place, name, entry)),
            _ => None,
        });
        let (_, name, entry) = waiting.min_by_key(|(place, ..)| *place)?;
        let is_doubtful = entry.is_doubtful;
        entry.state = State::Asked { at: now, is_doubtful };
        self.at_once += 1;
        self.doubtful += usize::from(is_doubtful);
        Some(name.clone())
    }

    /// A lookup ended.
    pub fn on_found(&mut self, name: &str, mut found: Found, now: Instant) {
        let Some(entry) = self.names.get_mut(name) else { return };
        let State::Asked { at, is_doubtful } = entry.state else { return };
        self.at_once -= 1;
        self.doubtful -= usize::from(is_doubtful);
        if let Ok(addresses) = &mut found {
            addresses.truncate(ADDRESSES_MAX);
            if addresses.is_empty() {
                found = Err("it has no address".to_owned());
            }
        }
        entry.is_doubtful = found.is_err() || now.since(at) > SLOW;
        entry.last = Some(Last { found, at: now });
        entry.state = State::Idle;
    }
}

fn wait(waited: &mut u64) -> State {
    *waited += 1;
    State::Waiting(*waited)
}

impl Last {
    fn answers(&self, Question { began, spoilt }: Question) -> bool {
        let is_young = self.at + YOUNG > began;
        is_young || (self.found.is_ok() && self.at + KEPT > began && spoilt.is_none_or(|spoilt| self.at > spoilt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn question(ms: u64) -> Question {
        Question { began: at(ms), spoilt: None }
    }

    fn ip(last: u8) -> Vec<IpAddr> {
        vec![IpAddr::from([192, 0, 2, last])]
    }

    #[test]
    fn a_name_is_looked_up_once_for_all_that_ask_and_its_addresses_are_kept() {
        let mut lookups = Lookups::default();
        assert_eq!(lookups.ask("a", question(0)), Reply::Soon);
        assert_eq!(lookups.next(at(0)).as_deref(), Some("a"));
        assert_eq!(lookups.ask("a", question(1)), Reply::Soon);
        assert_eq!(lookups.next(at(1)), None, "it is under way");
        lookups.on_found("a", Ok(ip(1)), at(9_000));
        assert_eq!(lookups.ask("a", question(1)), Reply::Known(Ok(ip(1))), "however long it took");
        assert_eq!(lookups.ask("a", question(38_999)), Reply::Known(Ok(ip(1))));
        assert_eq!(lookups.ask("a", question(39_000)), Reply::Soon, "that is long ago");
        assert_eq!(lookups.next(at(39_000)).as_deref(), Some("a"));
        lookups.on_found("a", Ok(ip(2)), at(39_000));
        // Nothing answers there: it is looked up again, but not each time within a second.
        let spoilt = |began| Question { began: at(began), spoilt: Some(at(39_500)) };
        assert_eq!(lookups.ask("a", spoilt(39_600)), Reply::Known(Ok(ip(2))));
        assert_eq!(lookups.ask("a", spoilt(40_000)), Reply::Soon);
    }

    #[test]
    fn a_failure_is_for_those_that_asked_and_for_a_second() {
        let mut lookups = Lookups::default();
        assert_eq!(lookups.ask("a", question(0)), Reply::Soon);
        lookups.next(at(0)).unwrap();
        lookups.on_found("a", Ok(Vec::new()), at(5_000));
        let nothing = Reply::Known(Err("it has no address".to_owned()));
        assert_eq!(lookups.ask("a", question(0)), nothing);
        assert_eq!(lookups.ask("a", question(5_999)), nothing);
        assert_eq!(lookups.ask("a", question(6_000)), Reply::Soon);
    }

    #[test]
    fn names_that_are_not_found_leave_threads_to_those_that_are() {
        let mut lookups = Lookups::default();
        let dead: Vec<_> = (0..2 * AT_ONCE_MAX).map(|n| format!("dead-{n}")).collect();
        for name in &dead {
            assert_eq!(lookups.ask(name, question(0)), Reply::Soon);
        }
        let first: Vec<_> = std::iter::from_fn(|| lookups.next(at(0))).collect();
        assert_eq!(first.len(), AT_ONCE_MAX, "no more at once");
        assert_eq!(lookups.ask("well", question(1)), Reply::Soon);
        for name in first {
            lookups.on_found(&name, Err("no answer".to_owned()), at(5_000));
        }
        let second: Vec<_> = std::iter::from_fn(|| lookups.next(at(5_000))).collect();
        assert_eq!(second.len(), AT_ONCE_MAX, "nothing is known of them yet");
        for name in second {
            lookups.on_found(&name, Err("no answer".to_owned()), at(9_000));
        }
        for name in &dead {
            assert_eq!(lookups.ask(name, question(20_000)), Reply::Soon);
        }
        let mut third: Vec<_> = std::iter::from_fn(|| lookups.next(at(20_000))).collect();
        assert!(third.contains(&"well".to_owned()), "{third:?}");
        third.retain(|name| name != "well");
        assert_eq!(third.len(), DOUBTFUL_MAX);
        lookups.on_found("well", Ok(ip(1)), at(20_001));
        assert_eq!(lookups.next(at(20_001)), None, "half of the threads are for names that are well");
        assert_eq!(lookups.ask("well", Question { began: at(30_000), spoilt: Some(at(29_000)) }), Reply::Soon);
        assert_eq!(lookups.next(at(30_000)).as_deref(), Some("well"));
    }

    #[test]
    fn names_are_bounded_and_those_that_nobody_waits_for_make_room() {
        let mut lookups = Lookups::default();
        for n in 0..NAMES_MAX {
            assert_eq!(lookups.ask(&n.to_string(), question(0)), Reply::Soon);
        }
        assert!(matches!(lookups.ask("one more", question(0)), Reply::Known(Err(_))));
        let name = lookups.next(at(0)).unwrap();
        lookups.on_found(&name, Ok(ip(1)), at(1));
        assert_eq!(lookups.ask("one more", question(1)), Reply::Soon);
    }
}
