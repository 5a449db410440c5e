//! Serves the console alone, for brokers that run already. For work on the pages.
//!
//! `cargo run -p tidegate-console --example serve -- 127.0.0.1:7070 TOKEN NAME=http://host:port...`, then perhaps
//! `--demo http://host:port` and, for each proxy, `--proxy NAME=http://host:port`.

use std::error::Error;

use tidegate_console::{BrokerSource, ConsoleConfig, ProxySource, router};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().ok_or("no address to listen on")?;
    let token = arguments.next().ok_or("no write token")?;
    let mut config = ConsoleConfig { write_token: token.clone(), ..ConsoleConfig::default() };
    while let Some(argument) = arguments.next() {
        if argument == "--demo" {
            config.demo = arguments.next();
            continue;
        }
        let is_proxy = argument == "--proxy";
        let source = if is_proxy { arguments.next().unwrap_or_default() } else { argument };
        let (name, admin_url) = source.split_once('=').ok_or("a broker or proxy is NAME=http://host:port")?;
        let (name, admin_url, token) = (name.to_owned(), admin_url.to_owned(), Some(token.clone()));
        if is_proxy {
            config.proxies.push(ProxySource { name, admin_url, token });
        } else {
            config.brokers.push(BrokerSource { name, admin_url, token });
        }
    }
    config.check()?;
    let listener = TcpListener::bind(&listen).await?;
    // The fragment stays in the browser: no server, proxy or log ever sees the token in an address.
    eprintln!("http://{}/#token={token}", listener.local_addr()?);
    axum::serve(listener, router(config)).await?;
    Ok(())
}
