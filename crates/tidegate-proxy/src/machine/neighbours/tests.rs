use super::*;

const C: u64 = 1_000;

fn with(resource: Resource, capacity: u64) -> NeighboursConfig {
    NeighboursConfig::default().with(resource, Capacity::Fixed(capacity))
}

fn start() -> Instant {
    Instant::from_nanos(1_000_000_000)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Lets time pass, with the timer's calls.
fn pass(neighbours: &mut Neighbours, now: &mut Instant, span: Duration) {
    let end = *now + span;
    while let Some(at) = neighbours.next_timeout().filter(|at| *at <= end) {
        *now = at.max(*now);
        neighbours.on_timeout(*now);
    }
    *now = end;
}

fn one(neighbours: &mut Neighbours, tenant: Tenant, resource: Resource, now: Instant) -> Option<Lane> {
    match neighbours.try_take(tenant, Stage::Hello, &[(resource, 1)], now) {
        Verdict::Admit { lane, .. } => Some(lane),
        Verdict::Refuse(_) => None,
    }
}

fn many(count: u32, neighbours: &mut Neighbours, tenant: Tenant, resource: Resource, now: Instant) {
    for _ in 0..count {
        one(neighbours, tenant, resource, now);
    }
}

#[test]
fn a_spike_is_muted_within_a_tick_and_a_quiet_tenant_does_not_notice() {
    let (mut now, resource) = (start(), Resource::Handshakes);
    let mut neighbours = Neighbours::new(with(resource, C), now);
    let [a, b] = ["a", "b"].map(|name| neighbours.tenant(name, now));
    let (mut refused_a, mut lanes_a) = (0, 0);
    let mut admitted_b = 0;
    for at in 0..10_000 {
        pass(&mut neighbours, &mut now, ms(1));
        let want_b = if at < 2_000 { u32::from(at % 10 == 5) } else { 3 };
        if at % 10 == 0 {
            match one(&mut neighbours, a, resource, now) {
                Some(Lane::Share) => {}
                // In its first tick it has no share.
                Some(Lane::Overflow) => lanes_a += u32::from(at > 200),
                None => refused_a += 1,
            }
        }
        for _ in 0..want_b {
            let lane = one(&mut neighbours, b, resource, now);
            admitted_b += u64::from(at >= 3_000 && lane.is_some());
            assert!(at < 2_200 || lane != Some(Lane::Share), "muted, at {at} ms");
        }
    }
    assert_eq!((refused_a, lanes_a), (0, 0));
    // What A leaves of a thousand, for seven seconds.
    assert!((6_200..=6_400).contains(&admitted_b), "{admitted_b}");
    let shown = neighbours.snapshot(now);
    assert_eq!(shown.tenants[0].name, "b");
    assert_eq!(shown.tenants[0].lane, Lane::Overflow);
    assert!(shown.tenants[0].refused.hello > 10_000);
    let handshakes = &shown.resources[resource.index()];
    assert_eq!(handshakes.capacity, Some(1_000.0));
    let shares: f64 = shown.tenants.iter().map(|tenant| tenant.resources[0].share).sum();
    assert!((shares + handshakes.global - 1_000.0).abs() < 1e-6);
}

#[test]
fn a_tenant_that_behaves_again_is_in_its_lane_within_two_seconds() {
    let (mut now, resource) = (start(), Resource::Requests);
    let mut neighbours = Neighbours::new(with(resource, C), now);
    let a = neighbours.tenant("a", now);
    for _ in 0..2_000 {
        pass(&mut neighbours, &mut now, ms(1));
        many(4, &mut neighbours, a, resource, now);
    }
    assert_eq!(neighbours.lane(a), Lane::Overflow);
    let mut last = 0;
    for at in 0..2_000 {
        pass(&mut neighbours, &mut now, ms(1));
        if at % 10 == 0 && one(&mut neighbours, a, resource, now) != Some(Lane::Share) {
            last = at;
        }
    }
    assert!(last < 1_500, "{last}");
}

#[test]
fn handshakes_and_requests_share_the_core_and_its_capacity_is_learnt() {
    let mut now = start();
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), now);
    let b = neighbours.tenant("b", now);
    let mut done_ns = 0;
    for at in 0..4_000_u64 {
        pass(&mut neighbours, &mut now, ms(1));
        for _ in 0..3 {
            let estimate = neighbours.expected_cost(b, Resource::HandshakeTime);
            let costs = [(Resource::Handshakes, 1), (Resource::HandshakeTime, estimate)];
            if let Verdict::Admit { .. } = neighbours.try_take(b, Stage::Hello, &costs, now) {
                // In truth 700 us.
                neighbours.settle(b, Resource::HandshakeTime, estimate, 700_000, now);
                done_ns += if at >= 2_000 { 700_000 } else { 0 };
            }
        }
        if at % 100 == 99 {
            // A third of the core goes to refusing: nothing is idle.
            neighbours.on_idle(Duration::ZERO, ms(100), now);
        }
        if at == 1_000 {
            assert_eq!(neighbours.expected_cost(b, Resource::HandshakeTime), 700_000);
        }
    }
    // With nothing idle, what is not charged is overhead: learnt capacity and charged work agree.
    let capacity = neighbours.capacity(Resource::HandshakeTime).unwrap();
    let used = number::float(done_ns) / 2.0;
    assert!((used / capacity - 1.0).abs() < 0.1, "{used} {capacity}");
    let handshakes = neighbours.capacity(Resource::Handshakes).unwrap();
    assert!((handshakes / (capacity / 700_000.0) - 1.0).abs() < 1e-6);
    let event = &neighbours.snapshot(now).resources[Resource::EventTime.index()];
    assert!(event.learnt && event.capacity == Some(capacity));
}

#[test]
fn what_is_guaranteed_may_not_be_turned_away_and_what_is_beyond_may() {
    let mut now = start();
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), now);
    let [a, b] = ["a", "b"].map(|name| neighbours.tenant(name, now));
    let ask = |neighbours: &mut Neighbours, tenant, now| {
        neighbours.try_take(tenant, Stage::Hello, &[(Resource::HandshakeTime, 1_000_000)], now)
    };
    // Both are here and want little.
    for _ in 0..2_000 {
        pass(&mut neighbours, &mut now, ms(1));
        if (now.as_nanos() / 1_000_000).is_multiple_of(20) {
            let _ = (ask(&mut neighbours, a, now), ask(&mut neighbours, b, now));
        }
    }
    // Then one wants everything at once.
    let mut seen = Vec::new();
    while let Verdict::Admit { lane, owed } = ask(&mut neighbours, b, now) {
        if seen.last() != Some(&(lane, owed)) {
            seen.push((lane, owed));
        }
    }
    assert_eq!(seen, [(Lane::Share, true), (Lane::Overflow, true), (Lane::Overflow, false)]);
    assert!(matches!(ask(&mut neighbours, a, now), Verdict::Admit { lane: Lane::Share, owed: true }));
}

#[test]
fn what_was_not_done_teaches_nothing_and_is_given_back() {
    let mut now = start();
    let mut neighbours = Neighbours::new(with(Resource::Handshakes, C), now);
    let [a, b] = ["a", "b"].map(|name| neighbours.tenant(name, now));
    neighbours.settle(a, Resource::HandshakeTime, 0, 700_000, now);
    for _ in 0..1_000 {
        pass(&mut neighbours, &mut now, ms(1));
        many(1, &mut neighbours, a, Resource::Handshakes, now);
    }
    let tokens = |neighbours: &mut Neighbours| {
        let mut probe = neighbours.clone();
        (0..10_000).take_while(|_| one(&mut probe, a, Resource::Handshakes, now).is_some()).count()
    };
    let before = tokens(&mut neighbours);
    for _ in 0..200 {
        let costs = [(Resource::Handshakes, 1), (Resource::HandshakeTime, 700_000)];
        let Verdict::Admit { .. } = neighbours.try_take(a, Stage::Hello, &costs, now) else {
            panic!("what was taken is given back each time")
        };
        neighbours.turn_away(a, Stage::Hello, Resource::HandshakeTime, &costs, Duration::ZERO, now);
    }
    assert_eq!(tokens(&mut neighbours), before);
    let shown = neighbours.snapshot(now);
    assert_eq!(shown.tenants.iter().find(|tenant| tenant.name == "a").unwrap().refused.hello, 200);
    for tenant in [a, b] {
        assert_eq!(neighbours.expected_cost(tenant, Resource::HandshakeTime), 700_000);
    }
}

#[test]
fn what_was_given_back_is_no_use_though_nothing_limits_it() {
    let mut now = start();
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), now);
    let a = neighbours.tenant("a", now);
    for turn in 0..1_000 {
        pass(&mut neighbours, &mut now, ms(1));
        let costs = [(Resource::Requests, 1)];
        assert!(matches!(neighbours.try_take(a, Stage::Request, &costs, now), Verdict::Admit { .. }));
        if turn % 2 == 0 {
            neighbours.turn_away(a, Stage::Request, Resource::Requests, &costs, Duration::ZERO, now);
        }
    }
    let shown = neighbours.snapshot(now);
    let requests = shown.tenants[0].resources.iter().find(|one| one.name == "requests").unwrap();
    assert!((requests.used - 500.0).abs() < 30.0, "{requests:?}");
    assert!((requests.demand - 1_000.0).abs() < 60.0, "{requests:?}");
}

#[test]
fn who_wants_too_much_stays_muted_though_it_is_turned_away_and_who_does_not_is_muted_for_a_second() {
    let mut now = start();
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), now);
    let [a, b] = ["a", "b"].map(|name| neighbours.tenant(name, now));
    let costs = [(Resource::Handshakes, 1), (Resource::HandshakeTime, 1_000_000)];
    // What is not the lane's of those within their shares finds no room in the other.
    let ask = |neighbours: &mut Neighbours, tenant, now| match neighbours.try_take(tenant, Stage::Hello, &costs, now) {
        Verdict::Admit { lane: Lane::Overflow, owed: false } => {
            neighbours.turn_away(tenant, Stage::Hello, Resource::HandshakeTime, &costs, Duration::ZERO, now);
            false
        }
        Verdict::Admit { .. } => true,
        Verdict::Refuse(_) => false,
    };
    let (mut served, mut late) = (0, 0);
    for turn in 0..5_000 {
        pass(&mut neighbours, &mut now, ms(1));
        // Once it wants far too much as well.
        let burst = if turn == 2_000 { 400 } else { 0 };
        for _ in 0..burst + u64::from(turn % 10 == 0) {
            let is_served = ask(&mut neighbours, a, now);
            served += u64::from(is_served && turn >= 3_500);
        }
        for _ in 0..5 {
            late += u64::from(ask(&mut neighbours, b, now) && turn > 500);
        }
    }
    assert_eq!((served, late), (150, 0));
    assert_eq!((neighbours.lane(a), neighbours.lane(b)), (Lane::Share, Lane::Overflow));
}

#[test]
fn under_a_quota_no_more_than_it_is_shared_out_and_who_keeps_to_his_share_is_served() {
    let mut now = start();
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), now);
    neighbours.set_core(500_000_000, now);
    let [a, b] = ["a", "b"].map(|name| neighbours.tenant(name, now));
    let costs = [(Resource::Handshakes, 1), (Resource::HandshakeTime, 1_000_000)];
    let (mut used_ms, mut looked_ms, mut refused_a) = (0, 0, 0);
    for turn in 0..6_000_u64 {
        pass(&mut neighbours, &mut now, ms(1));
        if turn % 100 == 99 {
            // A tenth of the core goes to refusing; what is not used, for the quota or otherwise, is idle.
            let used = used_ms - core::mem::replace(&mut looked_ms, used_ms);
            neighbours.on_idle(ms(90_u64.saturating_sub(used)), ms(100), now);
        }
        if turn == 2_000 {
            (used_ms, looked_ms) = (0, 0);
        }
        for tenant in [a, b, b, b] {
            if (tenant == a && turn % 10 > 0) || (tenant == b && turn < 500) {
                continue;
            }
            match neighbours.try_take(tenant, Stage::Hello, &costs, now) {
                Verdict::Admit { .. } => {
                    neighbours.settle(tenant, Resource::HandshakeTime, 1_000_000, 1_000_000, now);
                    used_ms += 1;
                }
                Verdict::Refuse(_) => refused_a += u64::from(tenant == a),
            }
        }
    }
    assert_eq!(refused_a, 0);
    assert!((1_500..=2_050).contains(&used_ms), "{used_ms} ms of 4 s");
    neighbours.set_core(1_000_000_000, now);
    let learnt = neighbours.capacity(Resource::EventTime).unwrap();
    assert!(learnt > 0.85e9, "a quota that is lifted holds nothing up: {learnt}");
}

#[test]
fn what_lacks_time_alone_goes_on_while_there_is_spare_time_and_is_counted_once() {
    let mut now = start();
    let ask = |spare: bool, now: &mut Instant| {
        let mut neighbours = Neighbours::new(NeighboursConfig::default(), *now);
        let b = neighbours.tenant("b", *now);
        let costs = [(Resource::Handshakes, 1), (Resource::HandshakeTime, 1_000_000), (Resource::Connections, 1)];
        let mut counts = (0, 0);
        for _ in 0..1_000 {
            pass(&mut neighbours, now, ms(1));
            for _ in 0..3 {
                match neighbours.try_take_or_spare(b, Stage::Hello, &costs, spare, *now) {
                    Verdict::Admit { .. } => counts.0 += 1,
                    Verdict::Refuse(_) => counts.1 += 1,
                }
            }
        }
        let seen = &neighbours.snapshot(*now).tenants[0];
        (counts, seen.refused.hello, seen.lane)
    };
    assert_eq!(ask(true, &mut now), ((3_000, 0), 0, Lane::Overflow));
    let ((served, refused), counted, _) = ask(false, &mut now);
    assert!(served + refused == 3_000 && refused > 1_000 && refused == counted, "{served} {refused} {counted}");
}

#[test]
fn work_that_was_charged_and_waits_is_no_time_that_there_was() {
    let mut now = start();
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), now);
    let b = neighbours.tenant("b", now);
    let costs = [(Resource::Handshakes, 1), (Resource::HandshakeTime, 1_000_000)];
    let (mut waiting, mut most) = (0_u64, 0);
    for turn in 0..3_000_u64 {
        pass(&mut neighbours, &mut now, ms(1));
        for _ in 0..2 {
            waiting += u64::from(matches!(neighbours.try_take(b, Stage::Hello, &costs, now), Verdict::Admit { .. }));
        }
        // Another program has the processor half of the time: one is done in two milliseconds.
        if turn % 2 == 0 && waiting > 0 {
            waiting -= 1;
            neighbours.settle(b, Resource::HandshakeTime, 1_000_000, 1_000_000, now);
        }
        if turn % 100 == 99 {
            neighbours.on_idle(Duration::ZERO, ms(100), now);
        }
        most = most.max(if turn >= 1_500 { waiting } else { 0 });
    }
    let capacity = neighbours.capacity(Resource::HandshakeTime).unwrap();
    assert!((capacity / 5e8 - 1.0).abs() < 0.05, "{capacity}");
    assert!(most < 500, "{most} wait");
}

#[test]
fn made_up_names_of_a_source_take_turns_as_one() {
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), start());
    let source = |last: u8| Source::of(std::net::IpAddr::from([192, 0, 2, last]));
    let of = |neighbours: &Neighbours, tenant| neighbours.claimant(tenant);
    let [x, y] = ["x", "y"].map(|name| neighbours.tenant_from(name, source(1), start()));
    let z = neighbours.tenant_from("z", source(2), start());
    assert!(of(&neighbours, x) == of(&neighbours, y) && of(&neighbours, x) != of(&neighbours, z));
    let known = neighbours.tenant("y", start());
    assert_eq!(of(&neighbours, known), Claimant::Tenant(known), "nobody made it up after all");
}

#[test]
fn a_flood_of_refusals_is_paid_for_by_who_is_refused_and_by_nobody_else() {
    let mut now = start();
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), now);
    let [a, b] = ["a", "b"].map(|name| neighbours.tenant(name, now));
    let costs = [(Resource::Handshakes, 1), (Resource::HandshakeTime, 1_000_000)];
    let (mut served, mut flooded, mut refused_a) = (0, 0, 0);
    for turn in 0..6_000_u64 {
        pass(&mut neighbours, &mut now, ms(1));
        if turn % 100 == 99 {
            let idle = if (1_000..3_000).contains(&turn) { 0 } else { 40 };
            neighbours.on_idle(ms(idle), ms(100), now);
        }
        if turn % 10 == 0 {
            match neighbours.try_take(a, Stage::Hello, &costs, now) {
                Verdict::Admit { .. } => neighbours.settle(a, Resource::HandshakeTime, 1_000_000, 1_000_000, now),
                Verdict::Refuse(_) => refused_a += 1,
            }
        }
        let hellos = if (1_000..3_000).contains(&turn) { 25 } else { turn % 2 };
        for _ in 0..hellos {
            match neighbours.try_take(b, Stage::Hello, &costs, now) {
                Verdict::Admit { lane, .. } => {
                    neighbours.settle(b, Resource::HandshakeTime, 1_000_000, 1_000_000, now);
                    let is_served = lane == Lane::Share;
                    served += u64::from(is_served && turn >= 5_000);
                    flooded += u64::from(is_served && (1_200..3_000).contains(&turn));
                }
                Verdict::Refuse(_) => {
                    neighbours.charge_refusal(b, 40_000, now);
                }
            }
        }
    }
    assert_eq!((refused_a, flooded), (0, 0));
    assert_eq!(served, 500, "two seconds after the flood");
}

#[test]
fn work_charged_in_parts_is_learnt_whole_and_charged_one_part_beforehand() {
    let now = start();
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), now);
    let a = neighbours.tenant("a", now);
    for _ in 0..5 {
        neighbours.correct(a, Resource::EventTime, 0, 2_000_000, now);
    }
    neighbours.learn(a, Resource::EventTime, 10_000_000, now);
    assert_eq!(neighbours.capacity(Resource::Requests), Some(100.0));
    assert_eq!(neighbours.expected_cost(a, Resource::EventTime), 2_000_000);
}

#[test]
fn who_comes_back_when_told_to_is_served() {
    let resource = Resource::Handshakes;
    for tenants in [1, 3, 20] {
        let mut now = start();
        let mut neighbours = Neighbours::new(with(resource, C), now);
        let names: Vec<_> = (0..tenants).map(|n| n.to_string()).collect();
        let all: Vec<_> = names.iter().map(|name| neighbours.tenant(name, now)).collect();
        // Everybody asks for too much for a second.
        for _ in 0..1_000 {
            pass(&mut neighbours, &mut now, ms(1));
            for tenant in &all {
                many(3, &mut neighbours, *tenant, resource, now);
            }
        }
        // Some come back when they are told to, the others not at all. The promises of those were made first, so what is
        // told now is later.
        let mut due = Vec::new();
        for n in 0..20 * tenants {
            let tenant = all[n % tenants];
            if let Verdict::Refuse(refusal) = neighbours.try_take(tenant, Stage::Hello, &[(resource, 1)], now) {
                assert!(refusal.retry_after > Duration::ZERO && refusal.retry_after <= Duration::from_secs(10));
                assert_eq!((refusal.cause, refusal.limit), (Cause::OverShare, C));
                due.push((now + refusal.retry_after, tenant));
            }
        }
        assert!(!due.is_empty());
        due.sort_by_key(|(at, _)| *at);
        for (at, tenant) in due {
            let span = at.since(now);
            pass(&mut neighbours, &mut now, span);
            assert!(one(&mut neighbours, tenant, resource, now).is_some(), "{tenants} tenants, at {at:?}");
        }
    }
}

#[test]
fn a_dry_run_refuses_nobody_and_counts() {
    let (mut now, resource) = (start(), Resource::Requests);
    let mut neighbours = Neighbours::new(NeighboursConfig { mode: Mode::Stats, ..with(resource, 10) }, now);
    let a = neighbours.tenant("a", now);
    for _ in 0..1_000 {
        pass(&mut neighbours, &mut now, ms(1));
        assert_eq!(one(&mut neighbours, a, resource, now), Some(Lane::Share));
    }
    let shown = neighbours.snapshot(now);
    assert!(shown.tenants[0].refused.hello > 900);
    assert!(shown.tenants[0].resources[0].used > 900.0, "it counts what was used in truth");
    let off = NeighboursConfig { mode: Mode::Off, ..with(resource, 10) };
    neighbours.reconfigure(off, now);
    assert_eq!(neighbours.next_timeout(), None);
    assert_eq!(one(&mut neighbours, a, resource, now), Some(Lane::Share));
}

#[test]
fn what_was_opened_without_limits_counts_when_there_are_some() {
    let mut now = start();
    let resource = Resource::Connections;
    let limited = with(resource, C);
    let off = NeighboursConfig { mode: Mode::Off, tenants_max: 2, ..limited.clone() };
    let mut neighbours = Neighbours::new(off, now);
    let held = |neighbours: &Neighbours| neighbours.ledger(resource).counted.held;
    // Tenants that come and go leave room for others though no tick passes.
    for name in 0..100 {
        let tenant = neighbours.tenant(&name.to_string(), now);
        assert_ne!(tenant, Tenant::OTHER, "{name}");
        assert!(one(&mut neighbours, tenant, resource, now).is_some());
        neighbours.release(tenant, resource, 1, now);
        assert_eq!(held(&neighbours), 0);
    }
    let a = neighbours.tenant("a", now);
    many(100, &mut neighbours, a, resource, now);
    neighbours.reconfigure(limited, now);
    pass(&mut neighbours, &mut now, ms(500));
    many(100, &mut neighbours, a, resource, now);
    assert_eq!(held(&neighbours), 200);
    (0..100).for_each(|_| neighbours.release(a, resource, 1, now));
    assert_eq!(held(&neighbours), 100, "those of the second hundred are there still");
    pass(&mut neighbours, &mut now, ms(500));
    assert!((neighbours.snapshot(now).resources[resource.index()].used - 100.0).abs() < 5.0);
}

#[test]
fn new_settings_keep_what_is_known() {
    let (mut now, resource) = (start(), Resource::Requests);
    let mut neighbours = Neighbours::new(with(resource, C), now);
    let [a, b] = ["a", "b"].map(|name| neighbours.tenant(name, now));
    let second = |neighbours: &mut Neighbours, now: &mut Instant| {
        let mut got = [0_u32, 0];
        for _ in 0..1_000 {
            pass(neighbours, now, ms(1));
            for _ in 0..3 {
                for (at, tenant) in [a, b].into_iter().enumerate() {
                    got[at] += u32::from(one(neighbours, tenant, resource, *now).is_some());
                }
            }
        }
        got
    };
    second(&mut neighbours, &mut now);
    let equal = second(&mut neighbours, &mut now);
    assert!(equal[0].abs_diff(equal[1]) < 20, "{equal:?}");
    let heavier = NeighboursConfig { weights: vec![("a".to_owned(), 3)], ..with(resource, C) };
    neighbours.reconfigure(heavier, now);
    assert_eq!(neighbours.tenant("a", now), a);
    second(&mut neighbours, &mut now);
    let got = second(&mut neighbours, &mut now);
    assert!(got[0].abs_diff(3 * got[1]) < 50, "{got:?}");
    neighbours.reconfigure(with(resource, 2 * C), now);
    second(&mut neighbours, &mut now);
    let got = second(&mut neighbours, &mut now);
    assert!(got[0].abs_diff(got[1]) < 40 && got[0] + got[1] > 1_960, "{got:?}");
}

#[test]
fn all_or_nothing_is_taken() {
    let mut now = start();
    let config = with(Resource::Requests, C).with(Resource::Connections, Capacity::Fixed(10));
    let mut neighbours = Neighbours::new(config, now);
    let a = neighbours.tenant("a", now);
    let costs = [(Resource::Requests, 1), (Resource::Connections, 100)];
    let Verdict::Refuse(refusal) = neighbours.try_take(a, Stage::Hello, &costs, now) else {
        panic!("there are ten connections only")
    };
    assert_eq!(refusal.resource, Resource::Connections);
    let shown = neighbours.snapshot(now);
    assert_eq!(shown.tenants[0].refused.hello, 1);
    neighbours.refused_elsewhere(a, Stage::Queue);
    assert_eq!(neighbours.snapshot(now).tenants[0].refused.queue, 1);
    neighbours.hold(a, Resource::Connections, 3, now);
    neighbours.release(a, Resource::Connections, 5, now);
    pass(&mut neighbours, &mut now, ms(500));
    assert_eq!(neighbours.snapshot(now).tenants[0].resources[0].name, "connections");
    assert!(neighbours.snapshot(now).tenants[0].resources[0].used < 2.0, "nothing is held any more");
}

#[test]
fn time_that_steps_back_mints_nothing() {
    let (now, resource) = (start(), Resource::Handshakes);
    let mut neighbours = Neighbours::new(with(resource, 10), now);
    let a = neighbours.tenant("a", now);
    // What was there at the start.
    many(100, &mut neighbours, a, resource, now);
    let mut got = 0;
    for step in 0..10_000_u64 {
        let at = now.plus_nanos((step % 2) * 1_000_000).minus_nanos((step % 3) * 1_000);
        got += u32::from(one(&mut neighbours, a, resource, at).is_some());
    }
    assert!(got <= 1, "{got}");
}

#[test]
fn a_snapshot_in_many_looks_shows_those_who_use_most() {
    let (mut now, resource) = (start(), Resource::Connections);
    let mut neighbours = Neighbours::new(with(resource, 1_000_000_000), now);
    let all: Vec<_> = (0..3_000).map(|name| neighbours.tenant(&format!("{name:04}"), now)).collect();
    for (&tenant, holds) in all.iter().zip(1..) {
        assert!(one(&mut neighbours, tenant, resource, now).is_some());
        neighbours.hold(tenant, resource, holds - 1, now);
    }
    pass(&mut neighbours, &mut now, ms(200));
    let mut walk = neighbours.walk(now);
    let mut looks = 1;
    while neighbours.look(&mut walk) {
        looks += 1;
    }
    assert!(looks > 3_000 / 1_024 + 1_000 / 64, "{looks} looks");
    let shown = walk.end();
    assert_eq!(shown, neighbours.snapshot(now));
    let names: Vec<_> = shown.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let most: Vec<_> = (2_000..3_000).rev().map(|name| format!("{name:04}")).collect();
    assert_eq!(names, most);
}

#[test]
fn everybody_else_is_found_by_name_and_takes_no_place() {
    let now = start();
    let mut neighbours = Neighbours::new(NeighboursConfig::default(), now);
    for name in [Tenant::OTHER_NAME, ""] {
        assert_eq!(neighbours.tenant(name, now), Tenant::OTHER);
        assert_eq!(neighbours.find(name), Some(Tenant::OTHER));
    }
    assert_eq!(neighbours.name_of(Tenant::OTHER), Tenant::OTHER_NAME);
}
