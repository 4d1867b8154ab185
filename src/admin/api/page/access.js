// The token: entered in a dialog, checked, and kept in memory.

import { forgetToken, hasToken, tryToken } from "./api.js";
import { announce, field, fill, h, input, newId, plain, shown } from "./dom.js";

/** The token of a line of the file (`name:token right`), or the token itself. */
function tokenOf(text) {
  const [, token] = /^[\w.@-]{1,64}:(\S+)/.exec(text) ?? [];
  return token ?? text;
}

/** The rights in the header, and the dialog for a token. */
export function access(element, changed) {
  let last = null;

  function show(status) {
    const name = status?.authorized_as ?? null;
    const now = JSON.stringify([name, hasToken()]);
    if (now === last) return;
    last = now;
    if (hasToken()) {
      const who = name === null ? "Token entered" : ["Authorized as ", h("strong", {}, shown(name))];
      fill(element, who, " ", h("button", { type: "button", class: "small", onclick: forget }, "Forget token"));
    } else {
      fill(element, "Read only ", h("button", { type: "button", class: "small", onclick: ask }, "Enter token"));
    }
  }

  function forget() {
    forgetToken();
    announce("Token forgotten.");
    changed();
  }

  function ask() {
    const id = newId("token");
    const before = document.activeElement;
    const wrong = h("p", { role: "alert", class: "wrong" });
    // Not a password field: browsers offer to store those.
    const value = input({ class: "secret", required: true, maxlength: 4096, autofocus: true });
    const submit = h("button", { type: "submit", class: "main" }, "Use token");
    const close = () => {
      value.value = "";
      dialog.remove();
      (before?.isConnected ? before : element.querySelector("button"))?.focus();
    };
    const tried = async (event) => {
      event.preventDefault();
      submit.disabled = true;
      fill(wrong);
      try {
        const status = await tryToken(tokenOf(value.value.trim()));
        announce(`Authorized as ${plain(status.authorized_as)}.`);
        changed();
        close();
      } catch (failure) {
        fill(wrong, failure.message);
        value.focus();
      }
      submit.disabled = false;
    };
    const form = h("form", { onsubmit: tried },
      h("h2", { id }, "Enter a token"),
      h("p", {}, "Changes need a token from the file that ", h("code", {}, "ADMIN_TOKEN_FILE"), " names. The page keeps it in memory until you close or reload it."),
      field("Token", value), wrong,
      h("div", { class: "buttons" }, submit, h("button", { type: "button", onclick: close }, "Cancel")));
    const dialog = h("dialog", { "aria-labelledby": id, oncancel: close }, form);
    document.body.append(dialog);
    dialog.showModal();
  }

  return { show, ask };
}
