use super::super::neighbours::{Neighbours, NeighboursConfig};
use super::*;

const FREE: u64 = 100_000;

fn at(us: u64) -> Instant {
    Instant::from_nanos(1_000_000_000 + us * 1_000)
}

fn tenants<const N: usize>(names: [&str; N]) -> [Claimant; N] {
    let mut limiter = Neighbours::new(NeighboursConfig::default(), Instant::ZERO);
    names.map(|name| Claimant::Tenant(limiter.tenant(name, Instant::ZERO)))
}

fn go(turns: &mut Turns, now: Instant) -> Vec<Ticket> {
    let mut go = Vec::new();
    turns.turn(&mut go, now);
    go
}

#[test]
fn who_has_had_his_part_of_a_moment_waits_until_the_next() {
    let ([noisy, quiet], mut turns) = (tenants(["noisy", "quiet"]), Turns::new(Tuning::default()));
    turns.ran(quiet, 10_000, at(0));
    turns.ran(noisy, FREE - 1, at(99));
    assert!(!turns.is_over(noisy, at(99)));
    turns.ran(noisy, 1, at(100));
    assert!(turns.is_over(noisy, at(100)) && !turns.is_over(quiet, at(100)));
    assert!(turns.is_over(noisy, at(999)) && !turns.is_over(noisy, at(1_000)));
    turns.ran(noisy, 10_000, at(1_010));
    assert!(!turns.is_over(noisy, at(1_010)), "it is another moment");
}

#[test]
fn who_is_alone_waits_for_nobody_and_nor_do_those_of_his_who_wait() {
    let ([noisy, quiet], mut turns) = (tenants(["noisy", "quiet"]), Turns::new(Tuning::default()));
    turns.ran(quiet, 10_000, at(0));
    turns.ran(noisy, 2 * FREE, at(10));
    assert!(turns.is_over(noisy, at(10)));
    let tickets: Vec<_> = (0..100).map(|_| turns.wait(noisy)).collect();
    turns.ran(noisy, 2 * FREE, at(100_010));
    assert!(!turns.is_over(noisy, at(100_010)));
    assert_eq!(go(&mut turns, at(100_010)), tickets);
    turns.ran(quiet, 10_000, at(100_020));
    turns.ran(noisy, 2 * FREE, at(100_220));
    assert!(turns.is_over(noisy, at(100_220)), "somebody came");
}

#[test]
fn lines_get_a_quantum_between_two_looks_and_the_same_time_each() {
    let ([a, b], mut turns) = (tenants(["a", "b"]), Turns::new(Tuning::default()));
    // One whose tasks take 10 us, and one whose take 40.
    let costs = [(a, 10_000), (b, 40_000)];
    let mut whose: HashMap<Ticket, usize, RandomState> = HashMap::default();
    let (mut used, mut now) = ([0_u64; 2], 0);
    for look in 0..2_000 {
        for (at, &(tenant, _)) in costs.iter().enumerate() {
            while whose.values().filter(|of| **of == at).count() < 200 {
                whose.insert(turns.wait(tenant), at);
            }
        }
        let mut spent = 0;
        for ticket in go(&mut turns, at(now)) {
            let of = whose.remove(&ticket).unwrap();
            let (tenant, ns) = costs[of];
            now += ns / 1_000;
            spent += ns;
            used[of] += if look >= 100 { ns } else { 0 };
            turns.ran(tenant, ns, at(now));
        }
        assert!(look < 100 || (60_000..=140_000).contains(&spent), "{spent} ns between two looks");
    }
    let share = used[0] * 1_000 / (used[0] + used[1]);
    assert!((480..=520).contains(&share), "{used:?}");
}

#[test]
fn a_line_of_its_own_comes_before_those_that_had_more() {
    let ([noisy, quiet], mut turns) = (tenants(["noisy", "quiet"]), Turns::new(Tuning::default()));
    turns.ran(noisy, 10 * FREE, at(0));
    for _ in 0..1_000 {
        turns.wait(noisy);
    }
    for look in 0..100 {
        for _ in go(&mut turns, at(look)) {
            turns.ran(noisy, 50_000, at(look));
        }
    }
    let ticket = turns.wait(quiet);
    assert!(go(&mut turns, at(200)).contains(&ticket), "it waits for no more than a quantum");
}

#[test]
fn who_has_gone_takes_no_turn() {
    let ([noisy], mut turns) = (tenants(["noisy"]), Turns::new(Tuning::default()));
    turns.ran(Claimant::OTHER, 1, at(0));
    turns.ran(noisy, 2 * FREE, at(1));
    let tickets: Vec<_> = (0..1_000).map(|_| turns.wait(noisy)).collect();
    tickets[..999].iter().for_each(|&ticket| turns.leave(ticket));
    assert_eq!(go(&mut turns, at(2)), [tickets[999]]);
    assert!(turns.is_empty() && turns.lines.is_empty() && turns.order.is_empty());
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut limiter = Neighbours::new(NeighboursConfig::default(), Instant::ZERO);
    let mut turns = Turns::new(Tuning::default());
    for number in 0..20_000_u64 {
        let tenant = Claimant::Tenant(limiter.tenant(&number.to_string(), Instant::ZERO));
        turns.ran(tenant, 1_000, at(number));
    }
    assert!(turns.tenants.len() <= Tuning::default().remembered + 1_001);
}

#[test]
fn what_a_tenant_used_while_nobody_waited_is_not_held_against_it() {
    let ([old, new], mut turns) = (tenants(["old", "new"]), Turns::new(Tuning::default()));
    // For ten seconds it had a twentieth of the thread.
    for ms in 0..10_000 {
        turns.ran(old, 50_000, at(ms * 1_000));
        turns.ran(Claimant::OTHER, 1_000, at(ms * 1_000 + 500));
    }
    turns.ran(new, FREE, at(10_000_000));
    let mut whose: HashMap<Ticket, Claimant, RandomState> = HashMap::default();
    for _ in 0..100 {
        whose.extend([old, new].map(|tenant| (turns.wait(tenant), tenant)));
    }
    let mut served = [0, 0];
    for look in 0..20 {
        for ticket in go(&mut turns, at(10_000_000 + look)) {
            let tenant = whose[&ticket];
            served[usize::from(tenant == new)] += 1;
            turns.ran(tenant, 50_000, at(10_000_000 + look));
        }
    }
    assert!(served[0] >= 15 && served[1] >= 15, "{served:?}");
}
