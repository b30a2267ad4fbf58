// Questions to the server. Errors are problems (RFC 9457); their words are for people.

/** What went wrong, in words. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server answered ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

/**
 * Asks, and gives the answer as JSON, or `null` if it has no content. Unless it is `quiet`, an answer
 * that asks for a login leads to the form.
 */
export async function ask(method, path, { json, body, headers, quiet } = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: {
        accept: "application/json",
        ...(json === undefined ? {} : { "content-type": "application/json" }),
        ...headers,
      },
      body: json === undefined ? body : JSON.stringify(json),
    });
  } catch {
    throw new Error("the server cannot be reached; whether the request had an effect is unknown");
  }
  const text = await answer.text();
  let content = null;
  try {
    content = text === "" ? null : JSON.parse(text);
  } catch {
    content = { detail: text.slice(0, 300) };
  }
  if (answer.status === 401 && !quiet) dispatchEvent(new Event("gapless:unauthenticated"));
  if (!answer.ok) throw new Problem(answer.status, content ?? {});
  return content;
}

/** A path with its parts escaped. */
export function path(strings, ...parts) {
  return String.raw({ raw: strings }, ...parts.map(encodeURIComponent));
}
