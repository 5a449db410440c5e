//! Tests of the limiter: its options, and what is wrong in the plugin and must not be here.

use core::time::Duration;

use proptest::prelude::*;
use tidegate_core::limit::Limit;
use tidegate_core::{Instant, Rate};

use super::*;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn limiter(config: RateLimitConfig) -> RateLimit {
    RateLimit::new(config, at(0))
}

fn limit(limit: u32, queue: u32) -> RateLimitConfig {
    RateLimitConfig { limit: Some(limit), queue, ..RateLimitConfig::default() }
}

fn rate(per_s: u64, burst: u64, queue: u32) -> RateLimitConfig {
    RateLimitConfig { rate: Some(Limit::new(Rate::per_s(per_s), burst)), queue, ..RateLimitConfig::default() }
}

fn outputs(limiter: &mut RateLimit) -> Vec<Output> {
    std::iter::from_fn(|| limiter.poll_output()).collect()
}

#[test]
fn the_outlook_is_what_an_arrival_is_told_then() {
    for config in [limit(2, 1), rate(10, 2, 1), RateLimitConfig { limit: Some(3), ..rate(10, 2, 1) }] {
        let mut limiter = limiter(config);
        for (id, when) in (0..12).map(|id| (id, at(id * 30))) {
            // What is due happens first.
            limiter.on_timeout(when);
            let outlook = limiter.outlook(when);
            assert_eq!(limiter.outlook(when), outlook, "looking takes nothing");
            let told = match limiter.on_arrival(id, when) {
                Decision::Admit => Outlook::Admit,
                // Why it waits is not told.
                Decision::Queue => Outlook::Queue(Cause::Limit),
                Decision::Reject(rejection) => Outlook::Reject(rejection.cause),
            };
            match (outlook, told) {
                (Outlook::Queue(_), Outlook::Queue(_)) => {}
                (outlook, told) => assert_eq!(outlook, told, "{config:?} visit {id}"),
            }
        }
    }
}

fn rejection(decision: Decision) -> Rejection {
    let Decision::Reject(rejection) = decision else { panic!("{decision:?} is no rejection") };
    rejection
}

/// How many of `n` arrivals at `at` are admitted.
fn admitted(limiter: &mut RateLimit, ids: core::ops::Range<u64>, at: Instant) -> usize {
    ids.filter(|&id| limiter.on_arrival(id, at) == Decision::Admit).count()
}

mod options {
    use super::*;

    #[test]
    fn limit_bounds_what_runs_at_once() {
        let mut limiter = limiter(limit(2, 0));
        assert_eq!(admitted(&mut limiter, 0..5, at(0)), 2);
        limiter.on_end(0, at(1));
        assert_eq!(admitted(&mut limiter, 5..9, at(1)), 1);
    }

    #[test]
    fn without_limit_and_rate_nobody_is_turned_away() {
        assert_eq!(admitted(&mut limiter(RateLimitConfig::default()), 0..10_000, at(0)), 10_000);
    }

    #[test]
    fn queue_holds_so_many_in_order_and_no_more() {
        let mut limiter = limiter(limit(1, 2));
        let decisions: Vec<_> = (0..4).map(|id| limiter.on_arrival(id, at(id))).collect();
        assert_eq!(decisions[..3], [Decision::Admit, Decision::Queue, Decision::Queue]);
        assert_eq!(rejection(decisions[3]).cause, Cause::Limit);
        limiter.on_end(0, at(10));
        limiter.on_end(1, at(20));
        let resumed = [Output::Resume { id: 1, waited: ms(9) }, Output::Resume { id: 2, waited: ms(18) }];
        assert_eq!(outputs(&mut limiter), resumed);
    }

    #[test]
    fn queue_of_zero_refuses_at_once() {
        let mut limiter = limiter(limit(1, 0));
        limiter.on_arrival(0, at(0));
        assert!(matches!(limiter.on_arrival(1, at(0)), Decision::Reject(_)));
    }

    #[test]
    fn maxage_is_in_the_unit_it_says_and_kept_to_the_nanosecond() {
        let mut limiter = limiter(RateLimitConfig { max_age: Some(ms(50)), ..limit(1, 9) });
        limiter.on_arrival(0, at(0));
        limiter.on_arrival(1, at(7));
        assert_eq!(limiter.next_timeout(), Some(at(57)));
        limiter.on_timeout(at(57).minus_nanos(1));
        assert_eq!(outputs(&mut limiter), []);
        limiter.on_timeout(at(57));
        assert!(matches!(
            outputs(&mut limiter)[..],
            [Output::Expire { id: 1, rejection: Rejection { cause: Cause::Age, .. } }]
        ));
    }

    #[test]
    fn without_maxage_one_waits_as_long_as_it_takes() {
        let mut limiter = limiter(limit(1, 9));
        limiter.on_arrival(0, at(0));
        limiter.on_arrival(1, at(0));
        assert_eq!(limiter.next_timeout(), None, "only an end can help");
        limiter.on_timeout(at(1_000_000_000));
        assert_eq!(outputs(&mut limiter), []);
    }

    #[test]
    fn error_and_retry_are_what_refusals_say() {
        let config = RateLimitConfig { error: 503, retry: Some(Duration::from_secs(7)), ..limit(0, 0) };
        let refused = rejection(limiter(config).on_arrival(0, at(0)));
        assert_eq!((refused.status, refused.retry_after), (503, Some(Duration::from_secs(7))));
        assert_eq!(rejection(limiter(limit(0, 0)).on_arrival(0, at(0))).status, 429, "the default");
    }

    #[test]
    fn where_retry_is_not_set_the_next_token_is_named() {
        let mut limiter = limiter(rate(10, 1, 0));
        limiter.on_arrival(0, at(0));
        let refused = rejection(limiter.on_arrival(1, at(40)));
        assert_eq!((refused.cause, refused.retry_after), (Cause::Rate, Some(ms(60))));
        assert_eq!(limiter.on_arrival(2, at(100)), Decision::Admit, "it comes true");
    }

    #[test]
    fn each_who_is_refused_is_told_of_a_token_of_its_own() {
        let mut limiter = limiter(rate(10, 1, 0));
        limiter.on_arrival(0, at(0));
        let waits: Vec<_> = (1..4).map(|id| rejection(limiter.on_arrival(id, at(40))).retry_after.unwrap()).collect();
        assert_eq!(waits, [ms(60), ms(160), ms(260)]);
        for (id, millis) in [(1, 100), (2, 200), (3, 300)] {
            assert_eq!(limiter.on_arrival(id, at(millis)), Decision::Admit, "it comes true");
        }
    }

    #[test]
    fn who_is_refused_is_told_of_a_token_behind_those_of_the_queue() {
        let mut limiter = limiter(rate(10, 1, 2));
        limiter.on_arrival(0, at(0));
        assert!((1..3).all(|id| limiter.on_arrival(id, at(0)) == Decision::Queue));
        let refused = rejection(limiter.on_arrival(3, at(0)));
        assert_eq!(refused.retry_after, Some(ms(300)));
        for (id, millis) in [(1, 100), (2, 200)] {
            limiter.on_timeout(at(millis));
            limiter.on_end(id, at(millis));
        }
        assert_eq!(limiter.on_arrival(3, at(300)), Decision::Admit, "it comes true");
    }

    #[test]
    fn conntrack_counts_a_connection_once_and_until_it_ends() {
        let mut limiter = limiter(limit(1, 1));
        // The same connection three times, then another one, twice.
        assert!((0..3).all(|_| limiter.on_arrival(7, at(0)) == Decision::Admit));
        assert!((0..2).all(|_| limiter.on_arrival(8, at(0)) == Decision::Queue));
        assert_eq!((limiter.counts().active, limiter.counts().queue), (1, 1));
        limiter.on_end(7, at(5));
        assert_eq!(outputs(&mut limiter), [Output::Resume { id: 8, waited: ms(5) }]);
    }

    #[test]
    fn rate_is_the_long_run_and_burst_the_head_start() {
        let mut limiter = limiter(rate(100, 5, 0));
        assert_eq!(admitted(&mut limiter, 0..20, at(0)), 5);
        let in_a_second: usize = (1..=1_000).map(|t| admitted(&mut limiter, t * 100..t * 100 + 3, at(t))).sum();
        assert_eq!(in_a_second, 100);
    }

    #[test]
    fn limit_and_rate_together_need_a_slot_and_a_token() {
        let mut limiter = limiter(RateLimitConfig { limit: Some(1), ..rate(10, 2, 9) });
        assert_eq!(limiter.on_arrival(0, at(0)), Decision::Admit);
        limiter.on_arrival(1, at(0));
        limiter.on_arrival(2, at(0));
        limiter.on_end(0, at(1));
        assert_eq!(outputs(&mut limiter), [Output::Resume { id: 1, waited: ms(1) }], "the second token");
        limiter.on_end(1, at(2));
        assert_eq!(outputs(&mut limiter), [], "a slot, no token");
        assert_eq!(limiter.next_timeout(), Some(at(100)));
        limiter.on_timeout(at(100));
        assert_eq!(outputs(&mut limiter), [Output::Resume { id: 2, waited: ms(100) }]);
    }

    #[test]
    fn a_late_timer_takes_nothing_off_the_rate() {
        let mut limiter = limiter(rate(1_000, 1, 99));
        for id in 0..10 {
            limiter.on_arrival(id, at(0));
        }
        limiter.on_timeout(at(5));
        let resumed: Vec<_> = outputs(&mut limiter);
        assert_eq!(resumed.len(), 5, "one was admitted on arrival, five tokens came since");
        assert_eq!(limiter.next_timeout(), Some(at(6)));
    }

    #[test]
    fn metrics_count_every_outcome_once() {
        let mut limiter = limiter(RateLimitConfig { max_age: Some(ms(10)), ..limit(1, 2) });
        for id in 0..4 {
            limiter.on_arrival(id, at(0));
        }
        limiter.on_end(0, at(5));
        limiter.on_timeout(at(10));
        let counts = limiter.counts();
        let expected = Counts { admitted: 1, queued: 2, rejected: 1, expired: 1, resumed: 1, active: 1, queue: 0 };
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_changed_limit_keeps_those_who_run_and_wait() {
        let mut limiter = limiter(limit(2, 5));
        for id in 0..4 {
            limiter.on_arrival(id, at(0));
        }
        limiter.set_config(limit(1, 0), at(1));
        assert_eq!((limiter.counts().active, limiter.counts().queue), (2, 2));
        limiter.set_config(limit(3, 5), at(2));
        assert_eq!(outputs(&mut limiter), [Output::Resume { id: 2, waited: ms(2) }]);
    }
}

/// What the plugin's source does, seen in its master branch and its history of repairs.
mod not_as_in_the_plugin {
    use super::*;

    #[test]
    fn a_rate_is_no_limit_of_what_runs_at_once() {
        // There, `rate` of an SNI selector is stored as its `limit`.
        let mut limiter = limiter(rate(10, 10, 0));
        assert_eq!(admitted(&mut limiter, 0..10, at(0)), 10);
        assert_eq!(admitted(&mut limiter, 10..20, at(1_000)), 10, "the first ten still run");
        for id in 0..10 {
            limiter.on_end(id, at(1_000));
        }
        assert_eq!(admitted(&mut limiter, 20..30, at(1_000)), 0, "free slots are no tokens");
    }

    #[test]
    fn every_bucket_fills_at_its_own_rate() {
        // There, all fill by the amount of the first.
        let (mut slow, mut fast) = (limiter(rate(40, 40, 0)), limiter(rate(4_000, 4_000, 0)));
        assert_eq!((admitted(&mut slow, 0..5_000, at(0)), admitted(&mut fast, 0..5_000, at(0))), (40, 4_000));
        assert_eq!(admitted(&mut slow, 5_000..9_999, at(500)), 20);
        assert_eq!(admitted(&mut fast, 5_000..9_999, at(500)), 2_000);
    }

    #[test]
    fn a_rate_below_forty_per_second_fills_too() {
        // There, a fortieth of it in whole numbers is added every 25 ms, which is nothing.
        for per_s in [1, 3, 39] {
            let mut limiter = limiter(rate(per_s, per_s, 0));
            admitted(&mut limiter, 0..100, at(0));
            let polled: usize = (1..=10_000).map(|t| admitted(&mut limiter, t * 1_000..t * 1_000 + 1, at(t))).sum();
            assert_eq!(polled as u64, per_s * 10, "{per_s}/s for ten seconds");
        }
    }

    #[test]
    fn the_first_requests_are_not_refused() {
        // There, buckets start empty.
        assert_eq!(admitted(&mut limiter(rate(10, 10, 0)), 0..10, at(0)), 10);
    }

    #[test]
    fn who_waits_for_a_rate_alone_is_resumed() {
        // There, only a limiter with a limit ever looks at its queue.
        let mut limiter = limiter(rate(10, 1, 9));
        limiter.on_arrival(0, at(0));
        assert_eq!(limiter.on_arrival(1, at(0)), Decision::Queue);
        assert_eq!(limiter.next_timeout(), Some(at(100)));
        limiter.on_timeout(at(100));
        assert_eq!(outputs(&mut limiter), [Output::Resume { id: 1, waited: ms(100) }]);
    }

    #[test]
    fn who_is_allowed_passes() {
        // There, a client on the exclusion list is refused.
        let allow = [Prefix::new("10.0.0.0".parse().unwrap(), 8).unwrap()].into_iter().collect();
        let lists = Lists { allow, ..Lists::default() };
        assert_eq!(lists.access("10.9.8.7".parse().unwrap()), Access::Exempt);
    }

    #[test]
    fn who_waits_starts_in_the_event_that_frees_the_slot() {
        // There, a sweep every 300 ms looks at the queue.
        let mut limiter = limiter(limit(1, 9));
        limiter.on_arrival(0, at(0));
        limiter.on_arrival(1, at(0));
        limiter.on_end(0, at(1));
        assert_eq!(outputs(&mut limiter), [Output::Resume { id: 1, waited: ms(1) }]);
    }

    #[test]
    fn no_end_is_counted_twice_and_none_goes_below_zero() {
        // There, "active counter underflow" had to be repaired, and a queued connection that closed leaked.
        let mut limiter = limiter(limit(1, 1));
        limiter.on_arrival(0, at(0));
        limiter.on_arrival(1, at(0));
        limiter.on_arrival(2, at(0));
        assert_eq!(limiter.on_end(1, at(1)), Ended::Waiting, "it closed while it waited");
        assert_eq!(limiter.on_end(1, at(1)), Ended::Unknown);
        assert_eq!(limiter.on_end(2, at(1)), Ended::Unknown, "it was rejected");
        assert_eq!(limiter.on_end(0, at(1)), Ended::Active);
        assert_eq!(limiter.on_end(0, at(1)), Ended::Unknown);
        assert_eq!(limiter.counts().active, 0);
        assert_eq!(admitted(&mut limiter, 3..9, at(1)), 1, "the limit is still one");
    }

    #[test]
    fn nobody_passes_those_who_wait() {
        // There, "queue bypass" had to be repaired: an arrival took the slot that those in the queue waited for.
        let mut limiter = limiter(limit(1, 9));
        for id in 0..3 {
            limiter.on_arrival(id, at(0));
        }
        limiter.on_end(0, at(1));
        assert_eq!(limiter.on_arrival(3, at(1)), Decision::Queue);
        assert_eq!(outputs(&mut limiter), [Output::Resume { id: 1, waited: ms(1) }]);
    }
}

mod parts {
    use tidegate_core::lease::{Grant, OnLapse, Refused};

    use super::*;

    fn grant(revision: u64, (per_s, burst): (u64, u64), until_ms: u64, on_lapse: OnLapse) -> Grant<Limit> {
        Grant { value: Limit::new(Rate::per_s(per_s), burst), revision, until: at(until_ms), on_lapse }
    }

    fn divided(per_s: u64, burst: u64) -> RateLimit {
        limiter(RateLimitConfig { divided: true, ..rate(per_s, burst, 0) })
    }

    #[test]
    fn what_is_divided_begins_closed_and_with_an_empty_bucket() {
        let mut limiter = divided(1_000, 10);
        assert_eq!(admitted(&mut limiter, 0..5, at(0)), 0);
        limiter.grant_part(grant(1, (1_000, 10), 1_000, OnLapse::Closed), at(5)).unwrap();
        assert_eq!(admitted(&mut limiter, 5..10, at(5)), 0, "a part that grows brings no tokens");
        assert_eq!(admitted(&mut limiter, 10..30, at(8)), 3);
        limiter.remove_part(2, at(8)).unwrap();
        assert_eq!(admitted(&mut limiter, 30..40, at(100)), 0, "others may have all of it");
    }

    #[test]
    fn a_part_rules_no_more_than_what_is_stated() {
        let mut limiter = limiter(rate(100, 5, 0));
        limiter.grant_part(grant(1, (1_000, 2), 10_000, OnLapse::Local), at(0)).unwrap();
        let status = limiter.part(at(0)).unwrap();
        assert_eq!(status.in_force, Some(Limit::new(Rate::per_s(100), 2)));
        assert_eq!((status.limit, status.revision), (Limit::new(Rate::per_s(1_000), 2), 1));
        assert_eq!(admitted(&mut limiter, 0..9, at(0)), 2);
        assert_eq!(
            limiter.grant_part(grant(0, (1, 1), 10_000, OnLapse::Local), at(0)),
            Err(Refused::Fenced { known: 1 })
        );
    }

    #[test]
    fn a_part_lapses_at_its_instant_however_late_that_is_seen() {
        for (on_lapse, after) in [(OnLapse::Local, 10), (OnLapse::Open, 100), (OnLapse::Closed, 1)] {
            let mut limiter = limiter(rate(1_000, 1_000, 0));
            limiter.grant_part(grant(1, (100, 100), 10, on_lapse), at(0)).unwrap();
            assert_eq!(admitted(&mut limiter, 0..1_000, at(0)), 100, "what is earned stays, up to the new depth");
            // Until 10 ms one token is minted; what a closed part has is gone with its depth.
            let later = admitted(&mut limiter, 1_000..3_000, at(100));
            let expected = match on_lapse {
                OnLapse::Closed => 0,
                OnLapse::Open => 1 + 90,
                OnLapse::Local => after,
            };
            assert_eq!(later, expected, "{on_lapse}");
            let lapsed = limiter.part(at(100)).unwrap();
            assert_eq!((lapsed.lapses_in, lapsed.on_lapse), (None, on_lapse));
            limiter.grant_part(grant(1, (100, 100), 200, on_lapse), at(100)).unwrap();
            assert_eq!(admitted(&mut limiter, 3_000..4_000, at(150)), 5, "it is in force again");
        }
    }

    #[test]
    fn who_waits_when_a_part_opens_goes_at_that_instant() {
        let mut limiter = limiter(rate(1_000, 1, 9));
        limiter.grant_part(grant(1, (1, 1), 50, OnLapse::Open), at(0)).unwrap();
        assert_eq!(limiter.on_arrival(0, at(0)), Decision::Admit);
        assert_eq!(limiter.on_arrival(1, at(1)), Decision::Queue);
        assert_eq!(limiter.next_timeout(), Some(at(50)));
        limiter.on_timeout(at(60));
        assert_eq!(outputs(&mut limiter).len(), 1);
    }

    #[test]
    fn demand_counts_whoever_came_and_the_backlog_those_who_were_refused() {
        let mut limiter = limiter(rate(1, 4, 0));
        admitted(&mut limiter, 0..3, at(1_000));
        admitted(&mut limiter, 3..9, at(2_000));
        let told = limiter.demand(10, at(3_500));
        let shown: Vec<_> = told.iter().map(|second| (second.second, second.arrived, second.refused)).collect();
        assert_eq!(shown, [(1, 3, 0), (2, 6, 4)]);
        assert_eq!((told[0].backlog_max, told[1].backlog_max), (3, 4 + 4));
        assert_eq!(limiter.demand(1, at(3_500)).len(), 1);
    }

    #[test]
    fn a_limit_that_is_lifted_has_no_part() {
        let mut limiter = divided(1, 1);
        limiter.grant_part(grant(1, (1, 1), 1_000, OnLapse::Closed), at(0)).unwrap();
        limiter.lift(at(1));
        assert_eq!((limiter.part(at(1)), admitted(&mut limiter, 0..100, at(1))), (None, 100));
    }
}

mod lent {
    use tidegate_core::lease::{Grant, OnLapse, Refused};
    use tidegate_core::lend::{Circle, Member};

    use super::*;
    use crate::machine::rate_limit::{LendTerms, NotGranted, SharedLimit};

    fn terms(own: u16) -> LendTerms {
        LendTerms { circle: Circle(7), own: Member(own), members: vec![Member(0), Member(1)] }
    }

    fn grant(revision: u64, (per_s, burst): (u64, u64)) -> Grant<Limit> {
        Grant { value: Limit::new(Rate::per_s(per_s), burst), revision, until: at(60_000), on_lapse: OnLapse::Closed }
    }

    /// Two proxies with half of a limit each, which lend, and whose buckets are full at the tenth second.
    fn two() -> [SharedLimit; 2] {
        let whole = RateLimitConfig { divided: true, ..rate(20, 40, 0) };
        [0, 1].map(|own| {
            let mut limit = SharedLimit::new(whole, 1, at(0)).fresh();
            limit.grant(grant(1, (10, 20)), Some(&terms(own)), at(0)).unwrap();
            limit
        })
    }

    /// Hands frames over until there are none; each takes a tenth of a millisecond.
    fn talk(limits: &mut [SharedLimit; 2], now: Instant) -> Instant {
        let mut now = now;
        for _ in 0..100 {
            let frames: Vec<_> =
                limits.iter_mut().flat_map(|limit| core::iter::from_fn(|| limit.poll_frame())).collect();
            if frames.is_empty() {
                return now;
            }
            now = now.plus_nanos(100_000);
            for frame in frames {
                limits[usize::from(frame.to.0)].on_frame(&frame, now);
            }
        }
        panic!("they talk without an end");
    }

    #[test]
    fn one_that_has_used_its_part_goes_on_with_what_another_has() {
        let mut limits = two();
        let mut now = at(10_000);
        let mut admitted = 0;
        for id in 0..60 {
            now = now.plus_nanos(1_000_000);
            admitted += u64::from(limits[0].on_arrival(id, now) == Decision::Admit);
            limits[0].on_end(id, now);
            now = talk(&mut limits, now);
        }
        // 40 tokens are there, one of which the other keeps, and one or two are minted meanwhile.
        assert!((37..=41).contains(&admitted), "{admitted}");
        let refused = limits[1].on_arrival(0, now);
        assert!(admitted + u64::from(refused == Decision::Admit) <= 41, "they are the whole");
    }

    #[test]
    fn a_part_shrinks_in_the_midst_of_loans_and_lapses_with_them() {
        let mut limits = two();
        let mut now = at(10_000);
        for id in 0..30 {
            now = now.plus_nanos(1_000_000);
            limits[0].on_arrival(id, now);
            now = talk(&mut limits, now);
        }
        // What the first one did not use came back as depth, so that there is some to take.
        assert_eq!(limits[1].grant(grant(2, (10, 2)), Some(&terms(1)), now), Ok(()));
        assert_eq!(
            limits[1].grant(grant(1, (10, 20)), Some(&terms(1)), now),
            Err(NotGranted::Refused(Refused::Fenced { known: 2 }))
        );
        let admitted = (100..200).filter(|&id| limits[1].on_arrival(id, now) == Decision::Admit).count();
        assert!(admitted <= 11, "{admitted}: of 40, 30 are gone, and one is minted");
        limits[1].on_timeout(at(61_000));
        assert_eq!((limits[1].member(), limits[1].on_arrival(300, at(61_000)) == Decision::Admit), (None, false));
    }

    #[test]
    fn one_that_may_have_lent_begins_with_a_token_of_depth() {
        let whole = RateLimitConfig { divided: true, ..rate(1_000, 40, 0) };
        let mut limit = SharedLimit::new(whole, 9, at(0));
        limit.grant(grant(1, (1_000, 20)), Some(&terms(0)), at(0)).unwrap();
        let mut admitted = |from: u64, now: u64| {
            (from..from + 30).filter(|&id| limit.on_arrival(id, at(now)) == Decision::Admit).count()
        };
        assert_eq!(admitted(0, 900), 1);
        assert_eq!(admitted(100, 1_100), 1, "the depth is back, and no token with it but what came since");
        assert_eq!(admitted(200, 1_200), 20);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive,
    End(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![3 => Just(Step::Arrive), 2 => any::<usize>().prop_map(Step::End), 2 => (0u64..40).prop_map(Step::Wait)]
}

proptest! {
    #[test]
    fn the_books_balance_and_both_limits_hold(
        steps in proptest::collection::vec(step(), 1..300),
        most in proptest::option::of(0u32..4),
        per_s in proptest::option::of((1u64..200, 1u64..4)),
        queue in 0u32..5,
        max_age in proptest::option::of(1u64..60),
    ) {
        let mut limiter = limiter(RateLimitConfig {
            limit: most,
            rate: per_s.map(|(per_s, burst)| Limit::new(Rate::per_s(per_s), burst)),
            queue,
            max_age: max_age.map(ms),
            ..RateLimitConfig::default()
        });
        let (mut now, mut running, mut waiting) = (0, Vec::new(), Vec::new());
        let mut begun = 0u64;
        for (id, step) in (0u64..).zip(steps) {
            match step {
                Step::Arrive => {
                    let decision = limiter.on_arrival(id, at(now));
                    match decision {
                        Decision::Admit => {
                            begun += 1;
                            running.push(id);
                        }
                        Decision::Queue => waiting.push(id),
                        Decision::Reject(_) => {}
                    }
                }
                Step::End(place) if !running.is_empty() => {
                    let place = place % running.len();
                    limiter.on_end(running.swap_remove(place), at(now));
                }
                Step::End(place) if !waiting.is_empty() => {
                    let place = place % waiting.len();
                    limiter.on_end(waiting.remove(place), at(now));
                }
                Step::End(_) => {}
                Step::Wait(span) => {
                    now += span;
                    limiter.on_timeout(at(now));
                }
            }
            for output in outputs(&mut limiter) {
                let (Output::Resume { id, .. } | Output::Expire { id, .. }) = output;
                prop_assert_eq!(waiting.remove(0), id, "first come, first served");
                if matches!(output, Output::Resume { .. }) {
                    begun += 1;
                    running.push(id);
                }
            }
            let counts = limiter.counts();
            prop_assert_eq!((counts.active, counts.queue), (running.len() as u64, waiting.len() as u64));
            prop_assert_eq!(counts.admitted + counts.resumed, begun);
            prop_assert!(counts.queue <= u64::from(queue));
            prop_assert!(most.is_none_or(|most| counts.active <= u64::from(most)));
            prop_assert!(per_s.is_none_or(|(per_s, burst)| begun * 1_000 <= burst * 1_000 + per_s * now));
            prop_assert!(limiter.next_timeout().is_none_or(|timeout| timeout > at(now)));
        }
    }
}
