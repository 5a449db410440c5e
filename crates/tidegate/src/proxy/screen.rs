//! What is said about a proxy at its start.

use std::net::SocketAddr;

use tidegate_proxy::config::{Amount, Config, Mode, TenantBy};

/// Routes and tenants that the screen names; more are only counted.
const SHOWN: usize = 8;

/// The lines, of which each begins with its subject.
pub(super) fn lines(config: &Config, addresses: &[SocketAddr], admin: Option<&str>) -> Vec<String> {
    let mut lines = Vec::new();
    for (listener, address) in config.listeners.iter().zip(addresses) {
        let scheme = if listener.tls { "https" } else { "http" };
        let spoken: Vec<&str> = [(listener.http1, "HTTP/1.1"), (listener.http2, "HTTP/2")]
            .into_iter()
            .filter_map(|(spoken, name)| spoken.then_some(name))
            .collect();
        lines.push(format!("proxy    {scheme}://{address}  {}", spoken.join(" and ")));
    }
    if let Some(admin) = admin {
        lines.push(format!("admin    {admin}"));
    }
    for route in config.routes.iter().take(SHOWN) {
        let upstream = &config.upstreams[route.upstream];
        let servers: Vec<String> = upstream.servers.iter().map(ToString::to_string).collect();
        let host = route.host.as_deref().unwrap_or("*");
        lines.push(format!("route    {host}{} -> {} ({})", route.path, upstream.name, servers.join(", ")));
    }
    if config.routes.len() > SHOWN {
        lines.push(format!("         and {} more", config.routes.len() - SHOWN));
    }
    lines.push(format!("tenants  {}", tenants(config)));
    lines.push(format!("limits   {}", limits(config)));
    lines
}

fn tenants(config: &Config) -> String {
    let by = match &config.tenants.by {
        TenantBy::Sni => "each SNI name is one; without TLS, each host".to_owned(),
        TenantBy::Host => "each host is one".to_owned(),
        TenantBy::Route => "each route is one".to_owned(),
        TenantBy::Header(name) => format!("each value of the header {name} is one"),
    };
    let all = &config.tenants.named;
    if all.is_empty() {
        return by;
    }
    let names = all.iter().take(SHOWN).map(|tenant| match tenant.weight {
        1 => tenant.name.clone(),
        weight => format!("{} (weight {weight})", tenant.name),
    });
    let more = if all.len() > SHOWN { format!(" and {} more", all.len() - SHOWN) } else { String::new() };
    format!("{by}; with a name: {}{more}", names.collect::<Vec<_>>().join(", "))
}

fn limits(config: &Config) -> String {
    let is_learnt = config.limits.capacities.iter().all(|amount| !matches!(amount, Amount::Fixed(_)));
    let how =
        if is_learnt { "capacities are learnt, bytes not limited" } else { "capacities as configured, others learnt" };
    match config.limits.mode {
        Mode::Restrict => format!("when something is short, each tenant gets its fair share of it; {how}"),
        Mode::Stats => format!("only counted, nobody is refused (mode stats); {how}"),
        Mode::Off => "off: a noisy tenant disturbs the others".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_runtime::config::Document;

    use super::*;

    #[test]
    fn the_screen_says_where_who_and_what_is_limited() {
        let text = "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n[[proxy.upstream]]\nname = \"shop\"\nservers = \
                    [\"127.0.0.1:9000\"]\n[[proxy.route]]\nupstream = \"shop\"\n[[proxy.tenant]]\nname = \
                    \"a.example\"\nweight = 3\n";
        let config = Config::from_document(&Document::new("t.toml", text), 1).unwrap();
        let address: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        insta::assert_snapshot!(lines(&config, &[address], Some("http://127.0.0.1:4154")).join("\n"), @r"
        proxy    http://127.0.0.1:8080  HTTP/1.1 and HTTP/2
        admin    http://127.0.0.1:4154
        route    */ -> shop (127.0.0.1:9000)
        tenants  each SNI name is one; without TLS, each host; with a name: a.example (weight 3)
        limits   when something is short, each tenant gets its fair share of it; capacities are learnt, bytes not limited
        ");
    }
}
