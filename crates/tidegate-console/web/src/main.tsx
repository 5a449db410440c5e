import "uplot/dist/uPlot.min.css";
import "./app.css";
import { render } from "preact";
import { App } from "./app";
import { store } from "./store";
import { token } from "./token";

token.takeFromAddress();
store.start();
render(<App />, document.getElementById("app") as HTMLElement);
