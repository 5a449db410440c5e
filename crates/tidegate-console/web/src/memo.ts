// Preact's `memo` without its compatibility layer.

import { type ComponentChild, type ComponentClass, Component } from "preact";

/** The component, drawn again only when one of its properties is another value. */
export function memo<P extends object>(draw: (properties: P) => ComponentChild): ComponentClass<P> {
  return class extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      return (Object.keys(next) as (keyof P)[]).some((key) => next[key] !== (this.props as P)[key]);
    }

    override render() {
      return draw(this.props as P);
    }
  };
}
