"use strict";
// Who may see jobs? The printed address has the token behind its #, which a browser sends to nobody. The page takes it
// out of the address at once, and exchanges it for a session. It keeps that for this tab and this port alone, and sends
// it in a header: a cookie would go to every server on this host.

const signedIn = (() => {
  const KEY = "holdfast-session";
  let token = taken();
  let session = JSON.parse(sessionStorage.getItem(KEY) ?? "null");

  function taken() {
    const given = new URLSearchParams(location.hash.slice(1)).get("token");
    if (given !== null) history.replaceState(null, "", location.pathname + location.search);
    return given;
  }

  async function ready() {
    if (token === null) return;
    const headers = { Authorization: `Bearer ${token}` };
    token = null;
    try {
      const response = await fetch("/session", { method: "POST", headers, credentials: "omit" });
      if (!response.ok) return;
      session = await response.json();
      sessionStorage.setItem(KEY, JSON.stringify(session));
    } catch {
      // The next request says what is wrong.
    }
  }

  return {
    ready,
    hasNewToken: () => (token = taken()) !== null,
    mayControl: () => Boolean(session?.control),
    fetch: (path, options = {}) =>
      fetch(path, { ...options, credentials: "omit", headers: { Authorization: `Session ${session?.session ?? ""}` } }),
  };
})();
