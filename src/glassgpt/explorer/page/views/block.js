import { put } from "../draw.js";
import { GlassView } from "../view.js";

class GlassBlock extends GlassView {
  render() {
    put(this, "block");
  }
}

customElements.define("glass-block", GlassBlock);
