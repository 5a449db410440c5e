// The write token: it arrives once in the printed address's fragment, which browsers do not send, and stays in the tab.

const KEY = "tidegate-write-token";
const listeners = new Set<() => void>();
let refused = false;

const tell = () => listeners.forEach((listener) => listener());

export const token = {
  /** Takes the token out of the address, so that it is neither bookmarked nor copied along. */
  takeFromAddress(): void {
    const match = /[#&]token=([^&]+)/.exec(location.hash);
    if (match === null) return;
    sessionStorage.setItem(KEY, decodeURIComponent(match[1] as string));
    history.replaceState(null, "", location.pathname + location.search);
  },
  read: (): string => sessionStorage.getItem(KEY) ?? "",
  write(text: string): void {
    refused = false;
    sessionStorage.setItem(KEY, text.trim());
    tell();
  },
  /** The console did not accept it, or there was none. */
  refuse(): void {
    refused = token.read() !== "";
    tell();
  },
  state: (): "missing" | "refused" | "held" => (refused ? "refused" : token.read() === "" ? "missing" : "held"),
  listen(listener: () => void): () => void {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};
