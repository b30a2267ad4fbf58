// Numbers, sizes and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 1234567 as "1,234,567". */
export function count(number) {
  return number === null || number === undefined ? "–" : whole.format(number);
}

/** A number with at most three digits and a letter: 1234567 as "1.23 M". */
export function short(number) {
  if (number === null || number === undefined) return "–";
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k", 1e3]]) {
    const unit = letter === "k" ? 1e3 : size;
    if (number >= size) return `${digits(number / unit)} ${letter}`;
  }
  return digits(number);
}

/** Bytes in powers of 1024. */
export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let at = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  while (number >= 1024 && at < units.length - 1) {
    number /= 1024;
    at += 1;
  }
  return `${digits(number)} ${units[at]}`;
}

export function rate(number) {
  return number === null || number === undefined ? "–" : `${short(number)}/s`;
}

export function byteRate(number) {
  return number === null || number === undefined ? "–" : `${bytes(number)}/s`;
}

/** Microseconds as "171 µs", "1.2 ms", "3 s". */
export function micros(number) {
  if (number === null || number === undefined) return "–";
  if (number < 1000) return `${digits(number)} µs`;
  if (number < 1e6) return `${digits(number / 1e3)} ms`;
  return `${digits(number / 1e6)} s`;
}

/** Milliseconds as the largest unit that fits: "3 days", "90 s". */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  const units = [[86400e3, "day"], [3600e3, "hour"], [60e3, "minute"], [1e3, "second"]];
  for (const [size, name] of units) {
    if (ms >= size) {
      const number = Math.floor(ms / size);
      return `${number} ${name}${number === 1 ? "" : "s"}`;
    }
  }
  return `${whole.format(ms)} ms`;
}

/** The time of day, with milliseconds. */
export function clock(ms) {
  const date = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  const day = two(date.getHours()) + ":" + two(date.getMinutes()) + ":" + two(date.getSeconds());
  return `${day}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** The day of a moment: "18 Nov". */
export function axisDay(ms) {
  const date = new Date(ms);
  return `${date.getDate()} ${MONTHS[date.getMonth()]}`;
}

/** The time of day to the minute. */
export function axisTime(ms) {
  return clock(ms).slice(0, 5);
}

/** The time of day, with the date if that is not today. */
export function stamp(ms) {
  const date = new Date(ms);
  const today = new Date();
  if (date.toDateString() === today.toDateString()) return clock(ms);
  const year = date.getFullYear() === today.getFullYear() ? "" : ` ${date.getFullYear()}`;
  return `${axisDay(ms)}${year}, ${clock(ms).slice(0, 8)}`;
}

/** A whole moment, for titles. */
export function moment(ms) {
  return new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");
}

/** A word as a heading or a cell begins with it. */
export function capital(word) {
  return word.charAt(0).toUpperCase() + word.slice(1);
}

/** "1 topic", "2 topics". */
export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

function digits(number) {
  if (number === 0) return "0";
  if (number < 10 && !Number.isInteger(number)) return trim(number.toFixed(number < 1 ? 2 : 1));
  return whole.format(number);
}

function trim(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
