// @ts-check
// Requests to the service, relative to the address of the page. The session's cookie says who asks; each POST has a
// key, so that a repetition does nothing twice.

export async function api(method, path, body, headers = {}) {
  const answer = await fetch(path.startsWith("/") ? `.${path}` : `api/v1/${path}`, {
    method,
    headers: {
      ...headers,
      ...(method === "POST" ? { "idempotency-key": crypto.randomUUID?.() ?? String(Math.random()) } : {}),
      ...(body ? { "content-type": "application/json" } : {}),
    },
    body: body && JSON.stringify(body),
  });
  const value = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(value?.detail ?? value?.title ?? answer.statusText);
  return value;
}

// The link that `cantrip serve` prints has a token behind the #, which is traded for a cookie that no script reads.
export async function signIn(token) {
  if (token) await api("POST", "/session", null, { authorization: `Bearer ${token}` });
  return api("GET", "/session");
}
