// Search runs in a worker, which browsers refuse to pages opened from disk. Here a hidden frame takes its place.
if (location.protocol === "file:") {
  const message = (data) => new MessageEvent("message", { data: structuredClone(data) });
  const later = (work) => setTimeout(work); // messages never arrive while the sender is still at work
  window.Worker = class {
    constructor(url) {
      this.frame = document.body.appendChild(document.createElement("iframe"));
      this.frame.hidden = true;
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => later(() => this.onmessage?.(message(data)));
      const script = inside.document.createElement("script");
      script.src = url;
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      inside.document.body.append(script);
    }
    postMessage(data) {
      this.loaded.then(() => later(() => this.frame.contentWindow?.dispatchEvent(message(data))));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
