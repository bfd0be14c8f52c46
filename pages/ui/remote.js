// Hands an order of the server to the timeline on the page: {serial, picked, t0, t1}.

let obeyed = 0;

export default function component({ data }) {
  if (!data?.serial || data.serial === obeyed) return;
  obeyed = data.serial;
  dispatchEvent(new CustomEvent("slotscope:go", { detail: data }));
}
