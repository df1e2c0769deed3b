"use strict";
// The report needs the session, which a browser that goes to its address does not send: this page asks for it.

(async () => {
  const said = document.getElementById("said");
  try {
    await signedIn.ready();
    const response = await signedIn.fetch(location.pathname);
    const text = await response.text();
    if (response.ok) {
      document.open();
      document.write(text);
      document.close();
    } else said.textContent = text;
  } catch {
    said.textContent = "holdfast web has not answered; look whether it still runs, and reload the page";
  }
})();
