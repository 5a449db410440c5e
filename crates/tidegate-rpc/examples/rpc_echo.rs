//! A service of microseconds and a caller of it, with Tidegate's credits between them.
//!
//! ```text
//! cargo run -p tidegate-rpc --example rpc_echo
//! ```

use std::io::Write as _;
use std::time::Duration;

use tidegate_core::Rng;
use tidegate_rpc::error::{CallError, RpcError};
use tidegate_rpc::io::tcp::client::deadline_in;
use tidegate_rpc::io::tcp::{CallOptions, ClientConfig, HandlerFailed, RpcClient, RpcServer, ServerConfig};
use tidegate_rpc::machine::credits::{Config, CreditClient, CreditServer};
use tidegate_rpc::machine::{Priority, Tenant};
use tidegate_runtime::clock;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), RpcError> {
    // Each shard has one core, and control of its own.
    let server = RpcServer::start(&ServerConfig::default(), |_shard| {
        let handler = |payload: &[u8], answer: &mut Vec<u8>| -> Result<(), HandlerFailed> {
            answer.extend(payload.iter().rev());
            Ok(())
        };
        (CreditServer::new(Config::default(), 1, clock::now()), handler)
    })?;

    let machine = CreditClient::new(Tenant(7), &mut Rng::new(clock::now().as_nanos()));
    let config = ClientConfig { tenant: Tenant(7), ..ClientConfig::default() };
    let client = RpcClient::connect(server.address(), machine, config).await?;

    let options = CallOptions { priority: Priority::CRITICAL, deadline: Some(deadline_in(Duration::from_secs(1))) };
    let mut out = std::io::stdout().lock();
    let said = match client.call(b"!dlrow ,olleh", options).await {
        Ok(answer) => writeln!(out, "{} after {:?}", String::from_utf8_lossy(&answer.payload), answer.response_time),
        // Its handler did not run: here, or at another server, it may be tried again.
        Err(CallError::Shed { reason, by }) => writeln!(out, "shed by the {by:?}: {reason:?}"),
        Err(error) => writeln!(out, "{error}"),
    };
    said.expect("somebody reads the output");
    drop(client);
    server.stop()
}
