use tidegate_core::Rate;

use super::*;

fn scenario() -> Scenario {
    Scenario {
        limit: Limit::new(Rate::per_s(3_000), 120),
        proxies: 6,
        load: 0.9,
        batch: 1,
        busy: 0.5,
        shift_s: 20,
        quiet_s: 0,
        way_us: 100,
        control_way_us: 500,
        loss: 0.0,
        crash_s: 0,
        drift_ppm: 0,
        length_s: 60,
        warm_up_s: 10,
        window_s: 10,
    }
}

#[test]
fn lending_refuses_next_to_nothing_that_the_undivided_limit_admits() {
    let reports = Scheme::ALL.map(|scheme| play(&scenario(), scheme, 1));
    for report in &reports {
        assert_eq!(report.violations, 0, "{report:?}");
    }
    let [fixed, adaptor, lending, both] = reports.map(|report| report.share_refused_with_tokens());
    assert!(
        fixed > 0.2 && adaptor < fixed / 2.0 && lending <= 0.01 && both <= 0.01,
        "{fixed} {adaptor} {lending} {both}"
    );
}

#[test]
fn whatever_is_lost_or_killed_the_whole_limit_holds() {
    let harsh = Scenario {
        loss: 0.2,
        crash_s: 7,
        drift_ppm: 200,
        load: 4.0,
        batch: 5,
        shift_s: 5,
        quiet_s: 1,
        busy: 0.2,
        length_s: 20,
        ..scenario()
    };
    for scheme in Scheme::ALL {
        let report = play(&harsh, scheme, 2);
        assert_eq!(report.violations, 0, "{report:?}");
    }
    assert_eq!(play(&harsh, Scheme::Both, 4), play(&harsh, Scheme::Both, 4), "same seed, same run");
    // Where nobody is killed the fullest window is full but for fractions of tokens: the check is no idle one.
    let full = Scenario { crash_s: 0, loss: 0.0, ..harsh };
    for scheme in Scheme::ALL {
        let report = play(&full, scheme, 3);
        assert!(report.violations == 0 && report.excess_max > -20.0, "{report:?}");
    }
}
