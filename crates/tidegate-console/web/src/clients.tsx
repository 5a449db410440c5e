// Each client's figures, asked for only while they are looked at.

import { useEffect, useState } from "preact/hooks";
import { type Client, clientsOf, Problem } from "./api";
import { formatCount } from "./format";
import type { RowId } from "./model";

const REFRESH_MS = 2_000;
const SHOWN = 200;

export function Clients({ id }: { id: RowId }) {
  const [open, setOpen] = useState(false);
  const [clients, setClients] = useState<{ channel: string; client: Client }[] | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    if (!open) return;
    let timer = 0;
    let gone = false;
    const ask = async () => {
      try {
        const answer = await clientsOf(id);
        if (!gone) {
          setClients(answer.flatMap(({ channel, clients }) => clients.map((client) => ({ channel, client }))));
          setError("");
        }
      } catch (problem) {
        if (!gone) setError((problem as Problem).message);
      }
      // After the answer, so that a slow broker is not asked twice at once.
      if (!gone) timer = window.setTimeout(ask, REFRESH_MS);
    };
    void ask();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [open]);

  return (
    <details class="clients" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary><h2>Clients</h2></summary>
      {error !== "" && <p class="error">{error}</p>}
      {clients !== null && clients.length === 0 && <p class="empty">No consumer is connected.</p>}
      {clients !== null && clients.length > 0 && (
        // Wider than a phone: it scrolls by itself, also with the keyboard.
        <div class="scroll" tabIndex={0} role="region" aria-label="Clients">
          <table class="plain">
            <thead>
              <tr>
                {["Client", "Channel", "Address", "Ready", "In flight", "Delivered", "Finished", "Requeued", "Link"].map((text) => (
                  <th key={text} scope="col">{text}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {clients.slice(0, SHOWN).map(({ channel, client }) => (
                <tr key={`${channel}/${client.remote_address}`}>
                  <th scope="row" title={client.user_agent}>{client.client_id || client.hostname || "?"}</th>
                  <td>{channel}</td>
                  <td>{client.remote_address}</td>
                  {[client.ready_count, client.in_flight_count, client.message_count, client.finish_count, client.requeue_count].map((count, i) => (
                    <td key={i} class="number">{formatCount(count ?? 0)}</td>
                  ))}
                  <td>{[client.tls && "TLS", client.snappy && "snappy", client.deflate && "deflate"].filter(Boolean).join(", ") || "plain"}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {clients.length > SHOWN && <p>{clients.length - SHOWN} more are not shown.</p>}
        </div>
      )}
    </details>
  );
}
