/* The search of pages that are opened from the disk: browsers start no workers there, so a hidden frame runs the worker's script. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.worker = this;
      frame.srcdoc = `<script>postMessage = data => frameElement.worker.receive(data)</` + `script><script src="${url}"></` + `script>`;
      this.ready = new Promise(done => frame.addEventListener("load", () => done(frame.contentWindow)));
      document.body.append(frame);
    }

    receive(data) {
      this.dispatchEvent(new MessageEvent("message", { data }));
    }

    postMessage(data) {
      this.ready.then(frame => frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
