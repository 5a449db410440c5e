//! What callers claim of themselves, beside a server that does not trust them: in virtual time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use core::time::Duration;

use tidegate_core::{Instant, Rng};
use tidegate_lab::rpc::{Group, Priority, Report, Scenario, measure};
use tidegate_rpc::machine::credits::{Config, CreditClient, CreditServer};
use tidegate_rpc::machine::{Ask, CallId, Claims, Client, Grant, Known, Reply, Request, Step};

const MS: Duration = Duration::from_millis(1);

/// What a caller says.
#[derive(Clone, Copy)]
enum Says {
    Truth,
    /// This priority instead of the true one.
    Lies(Priority),
    /// Everything that it has: another server, which might have got it, has room.
    OpenElsewhere,
}

/// A client whose calls are to the server what it makes of their claims, when they arrive there.
struct Judged {
    client: CreditClient,
    claims: Claims,
    /// What the server knows of a call, by the priority that it has for its caller.
    known: fn(Priority) -> Known,
    says: Says,
}

impl Client for Judged {
    fn on_call(&mut self, request: &Request, now: Instant, rng: &mut Rng) -> Step {
        let known = (self.known)(request.priority);
        let priority = if let Says::Lies(lie) = self.says { lie } else { request.priority };
        let request = Request { priority, ..*request };
        if let Says::OpenElsewhere = self.says {
            return Step::Send(Ask { aware: true, chance: 65_536, priority, ..Ask::default() });
        }
        match self.client.on_call(&request, now, rng) {
            Step::Send(ask) => Step::Send(self.claims.judge(ask, known)),
            step => step,
        }
    }

    fn on_reply(&mut self, reply: &Reply, now: Instant) {
        self.client.on_reply(reply, now);
    }

    fn on_grant(&mut self, grant: &Grant, now: Instant) {
        self.client.on_grant(grant, now);
    }

    fn on_cancel(&mut self, id: CallId, now: Instant) {
        self.client.on_cancel(id, now);
    }

    fn on_lost(&mut self, now: Instant) {
        self.client.on_lost(now);
    }
}

/// Runs `groups`; every client from a place on says something else than the others.
fn run(groups: Vec<Group>, claims: Claims, known: fn(Priority) -> Known, others: (u32, Says)) -> Report {
    let scenario = Scenario { groups, warm_up: 80 * MS, duration: 80 * MS, ..Scenario::default() };
    let server = CreditServer::new(Config::default(), scenario.cores, Instant::ZERO);
    let mut opened = 0;
    let client = |tenant, _, rng: &mut Rng| {
        opened += 1;
        let says = if opened > others.0 { others.1 } else { Says::Truth };
        Judged { client: CreditClient::new(tenant, rng), claims, known, says }
    };
    measure(&scenario, server, client).unwrap()
}

fn nothing(_: Priority) -> Known {
    Known::default()
}

const ALL_TRUE: (u32, Says) = (0, Says::Truth);

#[test]
fn a_client_whose_calls_are_all_critical_by_its_own_word_takes_nothing_from_others() {
    for load in [2.0, 5.0] {
        // Nineteen that want twice their share, one that wants as much or far more than all of them.
        let groups = vec![Group::new(19, 1.9), Group::new(1, load)];
        let report = run(groups, Claims::Untrusted, nothing, (19, Says::Lies(Priority::CRITICAL)));
        let [honest, _] = &report.by_group[..] else { panic!("two groups: {report:?}") };
        let fair = report.goodput_per_s * 19.0 / 20.0;
        println!("{load}: {} of {fair}, {}", honest.goodput_per_s, report.goodput_of_capacity);
        assert!(honest.goodput_per_s >= 0.95 * fair, "{load}: {report:?}");
    }
}

#[test]
fn the_better_calls_of_an_untrusted_client_come_first_among_its_own() {
    // Each wants three times what it gets, a tenth of it critical by its own word.
    let priorities = vec![(Priority::CRITICAL, 1.0), (Priority::DEFAULT, 9.0)];
    let report = run(vec![Group { priorities, ..Group::new(100, 3.0) }], Claims::Untrusted, nothing, ALL_TRUE);
    println!("{:?} {}", report.by_priority, report.goodput_of_capacity);
    assert!(report.by_priority[0].in_slo >= 0.97, "{report:?}");
    assert!(report.goodput_of_capacity >= 0.95, "{report:?}");
}

#[test]
fn batch_calls_of_untrusted_clients_wait_for_a_better_time() {
    let priorities = vec![(Priority::DEFAULT, 1.0), (Priority::BATCH, 2.0)];
    let report = run(vec![Group { priorities, ..Group::new(100, 2.1) }], Claims::Untrusted, nothing, ALL_TRUE);
    println!("{:?} {}", report.by_priority, report.goodput_of_capacity);
    assert!(report.by_priority[0].in_slo >= 0.99, "{report:?}");
    assert!(report.goodput_of_capacity >= 0.95, "{report:?}");
}

/// What the server's rule says: these calls are truly critical, those truly batch.
fn by_method(wanted: Priority) -> Known {
    let priority = if wanted == Priority(127) { Priority::CRITICAL } else { Priority::BATCH };
    Known { priority: Some(priority), ..Known::default() }
}

#[test]
fn priorities_that_the_server_sets_count_for_callers_that_do_not_know_of_them() {
    // At three times the capacity a quarter of the server goes into refusals: nobody else could keep these calls back.
    for (load, best, all) in [(1.5, 0.95, 0.9), (3.0, 0.7, 0.75)] {
        for plain in [false, true] {
            // For the clients all calls are the same; the plant counts them by what they are called here.
            let priorities = vec![(Priority(127), 1.0), (Priority(128), 4.0)];
            let group = Group { plain, priorities, ..Group::new(100, load) };
            let report = run(vec![group], Claims::Untrusted, by_method, (0, Says::Lies(Priority::DEFAULT)));
            println!("{load} {plain}: {:?} {}", report.by_priority, report.goodput_of_capacity);
            assert!(report.by_priority[0].in_slo >= best, "{load} {plain}: {report:?}");
            assert!(report.goodput_of_capacity >= all, "{load} {plain}: {report:?}");
        }
    }
}

#[test]
fn clients_of_several_servers_get_the_same_at_a_full_one_and_are_not_counted_twice() {
    // Half of the clients let all through, for another server has room; the others do as this one says.
    let groups = vec![Group::new(50, 1.0), Group::new(50, 1.0)];
    let report = run(groups, Claims::Untrusted, nothing, (50, Says::OpenElsewhere));
    let [one, several] = &report.by_group[..] else { panic!("two groups: {report:?}") };
    println!("{one:?} {several:?} {}", report.goodput_of_capacity);
    let ratio = several.goodput_per_s / one.goodput_per_s;
    assert!((0.8..=1.2).contains(&ratio), "{ratio}: {report:?}");
    assert!(report.goodput_of_capacity >= 0.9, "{report:?}");
}
