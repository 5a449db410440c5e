//! The two proxies, alike but for their limits.

use std::net::SocketAddr;

use tidegate_proxy::config::Config;
use tidegate_runtime::config::Document;

use super::plan::{Plan, Side};
use crate::failure::Failure;
use crate::proxy::{ProxyRunning, Taken};
use crate::token::Token;

/// Both of them, in the order of [`Side::BOTH`].
pub(super) struct Proxies {
    running: [ProxyRunning; 2],
    /// Where tenants connect.
    pub(super) addresses: [SocketAddr; 2],
    /// Base addresses of their admin APIs.
    pub(super) admin: [String; 2],
}

impl Proxies {
    /// Starts each in front of its service.
    pub(super) async fn start(plan: &Plan, services: [SocketAddr; 2], token: &Token) -> Result<Self, Failure> {
        let [left, right] = services;
        let left =
            ProxyRunning::start(config(Side::Left, plan, left)?, None, Some(token), &mut Taken::default()).await?;
        let right =
            ProxyRunning::start(config(Side::Right, plan, right)?, None, Some(token), &mut Taken::default()).await?;
        let running = [left, right];
        let addresses = running.each_ref().map(|proxy| proxy.addresses()[0]);
        let admin = running
            .each_ref()
            .map(|proxy| proxy.admin.as_ref().map_or_else(String::new, |at| format!("http://{}", at.here)));
        Ok(Self { running, addresses, admin })
    }

    /// Ends both, letting requests end first.
    pub(super) async fn stop(self) {
        for proxy in self.running {
            proxy.stop().await;
        }
    }
}

/// The configuration of one of them, as an operator would write it, in front of the service at `service`.
///
/// One thread each, and one for what is admitted beyond a tenant's share: plenty for some thousand requests per second,
/// and the rest of the machine is the browser's.
pub(super) fn config(side: Side, plan: &Plan, service: SocketAddr) -> Result<Config, Failure> {
    // Without limits is without those that the proxy would learn of the service itself.
    let learns = matches!(side, Side::Right);
    let limits = match side {
        Side::Left => "mode = \"off\"".to_owned(),
        Side::Right => {
            // What waits is not seen; the page shows who is told no.
            format!(
                "mode = \"restrict\"\npatience = \"0s\"\n[proxy.limits.capacities]\nrequests = \"{}/s\"",
                plan.admitted_per_s
            )
        }
    };
    // A request that the service refused is not sent again: both sides are asked the same.
    let text = format!(
        r#"
        [proxy]
        threads = 1
        overflow_threads = 1
        admin_address = "127.0.0.1:0"
        [[proxy.listen]]
        address = "127.0.0.1:0"
        [[proxy.upstream]]
        name = "service"
        servers = ["{service}"]
        max_connections = 1000
        adaptive_concurrency = {learns}
        retries = {{ attempts = 0 }}
        [[proxy.route]]
        upstream = "service"
        [proxy.tenants]
        by = "host"
        [proxy.limits]
        {limits}
        "#
    );
    let document = Document::new(format!("(the {} proxy)", side.as_str()), text);
    Ok(Config::from_document(&document, 1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_configurations_are_good_and_differ_in_their_limits_alone() {
        let service = SocketAddr::from(([127, 0, 0, 1], 9_000));
        let [mut left, right] = Side::BOTH.map(|side| config(side, &Plan::default(), service).unwrap());
        assert_ne!(left.limits, right.limits);
        assert_eq!([&left, &right].map(|config| config.upstreams[0].adaptive_concurrency), [false, true]);
        left.upstreams[0].adaptive_concurrency = true;
        assert_eq!(Config { limits: right.limits.clone(), ..left }, right);
    }
}
