// What the page asks of the server. A refusal becomes an Error with the server's own sentence.

async function ask(path, parameters, signal) {
  const query = new URLSearchParams(parameters).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, { signal, headers: { accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer: is it still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error ? body.error[0].toUpperCase() + body.error.slice(1) : `The server answered ${response.status}.`);
  return body;
}

export const search = (q, k, signal) => ask("/search", { q, k }, signal);
export const evidence = (page, q) => ask("/evidence", { page, q });
export const stats = () => ask("/stats", {});
export const picture = (id, longest) => `/pages/${encodeURIComponent(id)}/image?longest=${longest}`;
