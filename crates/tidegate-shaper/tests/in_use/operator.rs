//! An operator who changes everything while flows run.

use tidegate_runtime::config::Document;
use tidegate_shaper::config::Config;
use tidegate_shaper::io::agent::{Agent, Change, Switch};
use tidegate_shaper::io::view::State;

use crate::network::{DEVICE, Network};
use crate::stage::{Flow, agent, until};
use crate::{all_checksums_are_right, device};

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime of one thread").block_on(future)
}

fn reload(agent: &Agent, devices: &str) {
    let config = Config::from_document(&Document::new("t.toml", devices)).unwrap_or_else(|error| panic!("{error}"));
    wait_for(agent.handle().reload(config)).expect("the agent runs");
    let shown = device(agent);
    assert_eq!((shown.state, shown.problem, shown.programs_problem), (State::Shaped, None, None), "{devices}");
}

fn set(agent: &Agent, rate: &str) {
    let (device, class, rate) = (DEVICE.to_owned(), "all".to_owned(), rate.parse().expect("it is a rate"));
    wait_for(agent.handle().set_class(Change { device, class, rate, ceil: None })).expect("the kernel takes it");
}

#[test]
fn each_key_of_a_device_is_changed_under_load_and_no_flow_stalls() {
    let Some(network) = Network::new() else { return };
    let agent = agent(&network.device("", "500 Mbit/s"));
    let flows = ["10.83.0.2", "fd83::2"].map(|address| network.send(address));
    for keys in [
        "isolation = true",
        "delay = \"1ms\"\ncontrol = \"dctcp\"",
        "ecn = true\nhook = \"clsact\"",
        "occupancy = \"virtual\"\nrate = \"1 Gbit/s\"\nisolation = true",
        "control = \"off\"",
    ] {
        reload(&agent, &network.device(keys, "500 Mbit/s"));
        for flow in &flows {
            flow.comes(1 << 20);
        }
    }
    // The qdisc itself is made anew where the default class is another one.
    let another = network.device("", "500 Mbit/s").replace("default_class = \"all\"", "default_class = \"new\"");
    reload(&agent, &(another + "[[shaper.device.class]]\nname = \"new\"\nrate = \"300 Mbit/s\"\n"));
    for flow in &flows {
        flow.comes(1 << 20);
        until("the flow is held", || flow.is_held());
    }
    flows.into_iter().for_each(Flow::finish);
    all_checksums_are_right(&network);
}

#[test]
fn rates_and_the_switch_go_up_and_down_under_load_and_no_flow_stalls() {
    let Some(network) = Network::new() else { return };
    let agent = agent(&network.device("isolation = true", "500 Mbit/s"));
    let flows = ["10.83.0.2", "fd83::2"].map(|address| network.send(address));
    for (rate, bytes) in [("40 Gbit/s", 8 << 20), ("1 Mbit/s", 10_000), ("2 Gbit/s", 1 << 20), ("8 Mbit/s", 50_000)] {
        set(&agent, rate);
        for switch in [Switch::Off, Switch::On] {
            wait_for(agent.handle().switch(switch)).expect("the agent runs");
            for flow in &flows {
                flow.comes(bytes);
            }
        }
    }
    set(&agent, "500 Mbit/s");
    for flow in &flows {
        flow.comes(1 << 20);
        until("the flow is held", || flow.is_held());
    }
    flows.into_iter().for_each(Flow::finish);
    all_checksums_are_right(&network);
}
