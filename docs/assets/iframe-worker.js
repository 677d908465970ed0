// Browsers start no Worker for a page that is opened from a disk (file:). The site's search runs in a Worker, so this file
// runs the same script in a hidden frame instead. It does nothing on a site that a server delivers.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      // The script calls postMessage(data) to answer.
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = () => resolve(inside);
        script.onerror = reject;
        inside.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      this.loaded.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
