export { tableFromIPC } from "apache-arrow";
