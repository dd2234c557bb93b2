/* Browsers start no workers from the disk. There, the script of one runs in a hidden frame: the search works without a server. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><body></body>";
      this.started = new Promise((resolve, reject) => {
        this.frame.onload = () => {
          const inner = this.frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inner.document.createElement("script");
          script.src = url;
          script.onload = () => resolve(inner);
          script.onerror = reject;
          inner.document.body.append(script);
        };
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.started.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
