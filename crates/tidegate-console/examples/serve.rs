//! Serves the console alone, for brokers that run already. For work on the pages.
//!
//! `cargo run -p tidegate-console --example serve -- 127.0.0.1:7070 TOKEN NAME=http://host:port... [--demo http://host:port]`

use std::error::Error;

use tidegate_console::{BrokerSource, ConsoleConfig, router};
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
        let (name, admin_url) = argument.split_once('=').ok_or("a broker is NAME=http://host:port")?;
        let (name, admin_url) = (name.to_owned(), admin_url.to_owned());
        config.brokers.push(BrokerSource { name, admin_url, token: Some(token.clone()) });
    }
    config.check()?;
    let listener = TcpListener::bind(&listen).await?;
    // The fragment stays in the browser: no server, proxy or log ever sees the token in an address.
    eprintln!("http://{}/#token={token}", listener.local_addr()?);
    axum::serve(listener, router(config)).await?;
    Ok(())
}
