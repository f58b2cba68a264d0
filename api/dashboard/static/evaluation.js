// Uploads a gold file through the API, like any client; the page then measures against it.
import { call, complain } from "./dashboard.js";

document.getElementById("gold").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  const form = new FormData();
  form.append("purpose", "user_data");
  form.append("file", file, file.name);
  complain("");
  event.target.disabled = true;
  try { location.assign(`${location.pathname}?gold=${encodeURIComponent((await call("POST", "/v1/files", form)).id)}`); }
  catch (error) { complain(error.message); event.target.disabled = false; }
});
