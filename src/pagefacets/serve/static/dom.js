// Elements made from data: every text becomes a text node, never markup.

export const find = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

export function drawn(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const whole = new Intl.NumberFormat("en");
export const count = (number) => whole.format(number);
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (number >= 1000 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

export function milliseconds(number) {
  return number < 10 ? `${number.toFixed(1)} ms` : number < 1000 ? `${Math.round(number)} ms` : `${(number / 1000).toFixed(1)} s`;
}

// "10-K/annual.pdf" is shown as its last part; all of it is in the tooltip.
export const lastPart = (source) => source.split("/").pop() || source;

// The same as nodes, with places where a long name may go on in the next line.
export function fileName(source) {
  const parts = lastPart(source).split(/(?<=[_.-])/);
  return parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}
